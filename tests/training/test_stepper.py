from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from tests.training.small import hidden_move, network, points
from torch import Tensor, nn
from torch.nn import functional as F

from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.errors import InputError
from warp_unlearning.symmetry.moves import MomentumReset, Translation, apply_move
from warp_unlearning.training.constraints import Mask
from warp_unlearning.training.stepper import Stepper

RATES = (0.1, 0.2, 0.05, 0.1, 0.07)


def loss_of(model: nn.Module, data: TensorExamples) -> Tensor:
    return F.cross_entropy(model(data.x), data.y)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {n: p.detach().clone() for n, p in model.named_parameters()}


def assert_close(found: nn.Module, expected: nn.Module) -> None:
    for (name, a), b in zip(found.state_dict().items(), expected.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")


def by_hand(model: nn.Module, data: TensorExamples, rule: Callable[..., Tensor], max_norm: float | None = None) -> None:
    """Five steps of `rule(name, weight, gradient, rate, number)`."""
    parameters = dict(model.named_parameters())
    for number, rate in enumerate(RATES, 1):
        gradients = torch.autograd.grad(loss_of(model, data), list(parameters.values()))
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        # torch divides by the norm plus 1e-6.
        factor = 1.0 if max_norm is None else min(1.0, float(max_norm / (norm + 1e-6)))
        with torch.no_grad():
            for (name, p), g in zip(parameters.items(), gradients, strict=True):
                p.copy_(rule(name, p, factor * g, rate, number))


def sgd(momentum: float, weight_decay: float) -> Callable[..., Tensor]:
    buffers: dict[str, Any] = {}

    def rule(name: str, p: Tensor, g: Tensor, rate: float, number: int) -> Tensor:
        buffers[name] = momentum * buffers.get(name, 0.0) + g + weight_decay * p
        return p - rate * buffers[name]

    return rule


def adam(weight_decay: float) -> Callable[..., Tensor]:
    first: dict[str, Any] = {}
    second: dict[str, Any] = {}

    def rule(name: str, p: Tensor, g: Tensor, rate: float, number: int) -> Tensor:
        g = g + weight_decay * p
        first[name] = 0.9 * first.get(name, 0.0) + 0.1 * g
        second[name] = 0.999 * second.get(name, 0.0) + 0.001 * g**2
        corrected = first[name] / (1 - 0.9**number), second[name] / (1 - 0.999**number)
        return p - rate * corrected[0] / (corrected[1].sqrt() + 1e-8)

    return rule


CASES: list[tuple[dict[str, Any], Callable[[], Callable[..., Tensor]]]] = [
    ({"momentum": 0.0}, lambda: sgd(0.0, 0.0)),
    ({"momentum": 0.9, "weight_decay": 0.01}, lambda: sgd(0.9, 0.01)),
    ({"momentum": 0.5, "max_norm": 0.2}, lambda: sgd(0.5, 0.0)),
    ({"momentum": 0.5, "max_norm": 1e6}, lambda: sgd(0.5, 0.0)),
    ({"optimizer": "adam"}, lambda: adam(0.0)),
    ({"optimizer": "adam", "weight_decay": 0.1, "max_norm": 0.2}, lambda: adam(0.1)),
]


@pytest.mark.parametrize(("settings", "rule"), CASES, ids=[str(settings) for settings, _ in CASES])
def test_steps_are_those_of_the_formula(settings: dict[str, Any], rule: Callable[[], Callable[..., Tensor]]) -> None:
    model, data = network(), points()
    expected = deepcopy(model)
    stepper = Stepper(model, **settings)
    for rate in RATES:
        stepper.step(loss_of(model, data), lr=rate)
    by_hand(expected, data, rule(), settings.get("max_norm"))
    assert_close(model, expected)


def test_step_along_uses_the_gradients_given() -> None:
    model = network()
    before = weights_of(model)
    stepper = Stepper(model, momentum=0.0)
    for p in model.parameters():
        assert p.grad is None
    stepper.step_along({n: torch.full_like(p, 2.0) for n, p in model.named_parameters()}, lr=0.25)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), before[name] - 0.5)


@pytest.mark.parametrize("frozen", [True, False])
def test_only_parameters_that_are_trained_and_named_move_or_get_gradients(frozen: bool) -> None:
    model, data = network(), points()
    names = ["1.weight", "1.bias", "3.weight", "3.bias"]
    if frozen:
        model[0].requires_grad_(False)
    before = weights_of(model)
    stepper = Stepper(model, only=None if frozen else set(names), weight_decay=0.1)
    assert stepper.names == names
    stepper.step(loss_of(model, data), lr=0.1)
    assert [n for n, p in model.named_parameters() if not torch.equal(p, before[n])] == names
    assert [n for n, p in model.named_parameters() if p.grad is not None] == names


def masked(model: nn.Module) -> Mask:
    generator = torch.Generator().manual_seed(3)
    return Mask({n: torch.rand(p.shape, generator=generator) < 0.5 for n, p in model.named_parameters()})


def test_the_clipped_norm_under_a_mask_is_that_of_the_movable_part() -> None:
    model, data = network(), points()
    mask, before = masked(model), weights_of(model)
    copy = deepcopy(model)
    gradients = dict(zip(before, torch.autograd.grad(loss_of(copy, data), list(copy.parameters())), strict=True))
    allowed = {n: g * mask.movable[n] for n, g in gradients.items()}
    norm = torch.cat([g.flatten() for g in allowed.values()]).norm()
    whole = torch.cat([g.flatten() for g in gradients.values()]).norm()
    assert norm < 0.95 * whole
    Stepper(model, momentum=0.0, constraint=mask, max_norm=float(norm) / 2).step(loss_of(model, data), lr=1.0)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), before[name] - allowed[name] / 2, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_permutation_in_between_changes_nothing_but_the_places(optimizer: Any) -> None:
    """Momentum, second moments and mask follow the weights, so the run that was permuted is the permuted run."""
    moved, data = network(), points()
    still = deepcopy(moved)
    move = hidden_move([3, 0, 5, 1, 4, 2])
    steppers = [
        Stepper(m, optimizer=optimizer, momentum=0.9, weight_decay=0.1, constraint=masked(m), max_norm=0.3)
        for m in (moved, still)
    ]
    for number, rate in enumerate(RATES):
        if number == 3:
            apply_move(moved, move)
            steppers[0].carry(move)
        for model, stepper in zip((moved, still), steppers, strict=True):
            stepper.step(loss_of(model, data), lr=rate / 5)
    assert not torch.allclose(moved[0].weight, still[0].weight)
    apply_move(still, move)
    assert_close(moved, still)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_rescaling_divides_momentum_and_its_square_divides_second_moments(optimizer: Any) -> None:
    model, data = network(), points()
    stepper = Stepper(model, optimizer=optimizer)
    stepper.step(loss_of(model, data), lr=0.1)
    before = {n: t.clone() for n, t in stepper.state().items()}
    order, scale = [3, 0, 5, 1, 4, 2], torch.tensor([2.0, 0.5, 4.0, 1.0, 3.0, 0.25], dtype=torch.float64)
    stepper.carry(hidden_move(order, scale))
    after = stepper.state()
    first = "momentum_buffer" if optimizer == "sgd" else "exp_avg"
    torch.testing.assert_close(after[f"{first}.1.weight"], before[f"{first}.1.weight"][order] / scale)
    torch.testing.assert_close(after[f"{first}.3.weight"], before[f"{first}.3.weight"][:, order] * scale)
    torch.testing.assert_close(after[f"{first}.0.weight"], before[f"{first}.0.weight"][order])
    torch.testing.assert_close(after[f"{first}.3.bias"], before[f"{first}.3.bias"])
    if optimizer == "adam":
        torch.testing.assert_close(after["exp_avg_sq.1.bias"], before["exp_avg_sq.1.bias"][order] / scale**2)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_saved_state_continues_to_the_same_bits(optimizer: Any) -> None:
    model, data = network(), points()
    stepper = Stepper(model, optimizer=optimizer, weight_decay=0.01)
    for rate in RATES[:2]:
        stepper.step(loss_of(model, data), lr=rate)
    other = deepcopy(model)
    resumed = Stepper(other, optimizer=optimizer, weight_decay=0.01)
    resumed.load_state({n: t.clone() for n, t in stepper.state().items()})
    for rate in RATES[2:]:
        stepper.step(loss_of(model, data), lr=rate)
        resumed.step(loss_of(other, data), lr=rate)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_unusable_models_and_names_are_refused() -> None:
    with pytest.raises(InputError, match="no trainable parameter"):
        Stepper(network().requires_grad_(False))
    with pytest.raises(InputError, match="'lion'; known: sgd, adam"):
        Stepper(network(), optimizer="lion")  # type: ignore[arg-type]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_reset_forgets_all_state_and_goes_on_as_a_fresh_optimizer(optimizer: Any) -> None:
    """The mask of a `MomentumReset` moves all the same."""
    model, data = network(), points()
    mask = masked(model)
    allowed = mask.movable["0.weight"].clone()
    stepper = Stepper(model, optimizer=optimizer, momentum=0.9, weight_decay=0.01, constraint=mask)
    for rate in RATES[:2]:
        stepper.step(loss_of(model, data), lr=rate)
    assert stepper.state()
    move = hidden_move([3, 0, 5, 1, 4, 2], torch.tensor([2.0, 0.5, 4.0, 1.0, 3.0, 0.25], dtype=torch.float64))
    apply_move(model, move)
    other = deepcopy(model)
    stepper.carry(MomentumReset(move))
    assert all(not value.any() for value in stepper.state().values())
    assert torch.equal(mask.movable["0.weight"], allowed[[3, 0, 5, 1, 4, 2]])
    fresh = Stepper(other, optimizer=optimizer, momentum=0.9, weight_decay=0.01, constraint=mask)
    for rate in RATES[2:]:
        stepper.step(loss_of(model, data), lr=rate)
        fresh.step(loss_of(other, data), lr=rate)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_a_shift_carries_momentum_as_it_is_and_no_move_at_all_does_not_reset() -> None:
    model, data = network(), points()
    stepper = Stepper(model)
    stepper.step(loss_of(model, data), lr=0.1)
    before = stepper.state()
    for move in (None, Translation({n: torch.ones_like(p) for n, p in model.named_parameters()})):
        stepper.carry(move)
        after = stepper.state()
        assert after.keys() == before.keys()
        assert all(torch.equal(after[n], t) for n, t in before.items())


@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_gradients_and_state_are_laid_out_in_memory_as_their_parameters(max_norm: float | None) -> None:
    model = nn.Conv2d(3, 2, 2, bias=False).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    weight = model.weight
    factors = torch.arange(24.0).reshape(weight.shape)
    mask = Mask({"weight": torch.ones(weight.shape, dtype=torch.bool)})
    stepper = Stepper(model, momentum=0.0, max_norm=max_norm, constraint=mask)
    expected = weight.detach() - 0.1 * (factors if max_norm is None else factors / factors.norm())
    # The gradient of a contiguous copy is contiguous, which fused steps on a GPU refuse for these weights.
    stepper.step((weight.contiguous() * factors).sum(), lr=0.1)
    assert weight.grad is not None
    assert weight.grad.stride() == weight.stride()
    torch.testing.assert_close(weight.detach(), expected)
    stepper.step_along({"weight": factors.contiguous()}, lr=0.1)
    assert weight.grad.stride() == weight.stride()
    other = Stepper(nn.Conv2d(3, 2, 2, bias=False))
    other.load_state({"momentum_buffer.weight": weight.detach()})
    (buffer,) = (state["momentum_buffer"] for state in other.optimizer.state.values())
    assert buffer.is_contiguous()
    assert torch.equal(buffer, weight)
