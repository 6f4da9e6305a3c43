"""What a move of any symmetry must do, in float64: the function stays, and all that follows the weights follows."""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from warp_unlearning.symmetry.layer_inputs import linear_weights, observe
from warp_unlearning.symmetry.moves import Move, apply_move


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def built(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """The network, its weights drawn from the seed, its batch norms not at their initial values."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make().double()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                nn.init.normal_(module.weight, 1.0, 0.3)
                nn.init.normal_(module.bias, 0.0, 0.3)
                nn.init.normal_(module.running_mean, 0.0, 0.3)
                nn.init.uniform_(module.running_var, 0.5, 2.0)
    return model.eval()


def moved_by(model: nn.Module, move: Move) -> nn.Module:
    moved = deepcopy(model)
    apply_move(moved, move)
    return moved


@torch.no_grad()
def relative_change(model: nn.Module, moved: nn.Module, x: Any) -> float:
    before, after = (
        out if isinstance(out, Tensor) else torch.cat([o.flatten() for o in out]) for out in (model(x), moved(x))
    )
    return float((after - before).abs().max() / before.abs().max())


@torch.no_grad()
def distance(model: nn.Module, moved: nn.Module, names: Collection[str] | None = None) -> float:
    """How far parameters moved (those named, or all), relative to their length."""
    pairs = [
        (p.flatten(), q.flatten())
        for (name, p), q in zip(model.named_parameters(), moved.parameters(), strict=True)
        if names is None or name in names
    ]
    before, after = map(torch.cat, zip(*pairs, strict=True))
    return float((after - before).norm() / before.norm())


def gradients(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    loss = F.cross_entropy(model(x), torch.arange(len(x)) % 2)
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return {name: gradient for name, gradient in zip(names, found, strict=True) if gradient is not None}


def entering(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """What enters each linear map, (d, positions) or (3, d, positions), by the name of its weight."""
    found: dict[str, Tensor] = {}
    weights = [
        replace(weight, bias=None) for weight in linear_weights(model) if weight.groups == 1 or "proj" in weight.name
    ]
    observe(model, [x], weights, lambda weight, columns: found.update({weight.name: columns.squeeze(0)}))
    return found


def assert_symmetric(
    model: nn.Module, move: Move, x: Tensor, *, moving: Collection[str] | None = None, rounding: float = 1e-14
) -> None:
    """The function stays, in float32 too; gradients follow as covectors and layer inputs as inputs; weights (those
    that are `moving`) go far; the inverse brings all back. The model itself is left as it was.

    `rounding` is what a gradient that should be zero may come to.
    """
    state, single = deepcopy(model.state_dict()), deepcopy(model).float()
    moved = moved_by(model, move)
    assert equal_states(model, state)
    assert relative_change(model, moved, x) < 1e-10
    assert relative_change(single, moved_by(single, move), x.float()) < 1e-4
    assert distance(model, moved, moving) > 0.3
    found, entered = gradients(moved, x), entering(moved, x)
    for name, gradient in gradients(model, x).items():
        expected = move.covector(name, gradient)
        torch.testing.assert_close(found[name], expected, rtol=1e-7, atol=1e-9 * float(expected.abs().max()) + rounding)
    for name, columns in entering(model, x).items():
        torch.testing.assert_close(entered[name], move.inputs(name, columns), rtol=1e-9, atol=1e-9)
    for name, value in moved_by(moved, move.inverse()).state_dict().items():
        torch.testing.assert_close(value, state[name], rtol=1e-10, atol=1e-12)


def equal_states(model: nn.Module, other: nn.Module | dict[str, Tensor]) -> bool:
    state = other.state_dict() if isinstance(other, nn.Module) else other
    return all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
