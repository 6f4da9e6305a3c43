"""Random residual networks, moved by every symmetry of the channel graph: function, gradients, and the way back."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from warp_unlearning.symmetry.moves import Move, apply_move
from warp_unlearning.symmetry.rescaling import ChangeOfBasis, Permutation

ACTS: dict[str, Callable[[int], nn.Module]] = {
    "relu": lambda c: nn.ReLU(),
    "in_place": lambda c: nn.ReLU(inplace=True),
    "leaky": lambda c: nn.LeakyReLU(0.2),
    "slope": lambda c: nn.PReLU(),
    "slopes": lambda c: nn.PReLU(c),
    "gelu": lambda c: nn.GELU(),
    "silu": lambda c: nn.SiLU(),
    "none": lambda c: nn.Identity(),
}
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "none": lambda c: nn.Identity(),
    "batch": nn.BatchNorm2d,
    "plain_batch": lambda c: nn.BatchNorm2d(c, affine=False),
    "batch_only": lambda c: nn.BatchNorm2d(c, track_running_stats=False),
    "group": lambda c: nn.GroupNorm(2, c),
}


def unit(before: int, after: int, act: str, norm: str, *, stride: int = 1, groups: int = 1) -> nn.Sequential:
    kernel = nn.Conv2d(before, after, 3, stride=stride, padding=1, groups=groups, bias=norm == "none")
    return nn.Sequential(kernel, NORMS[norm](after), ACTS[act](after))


class Block(nn.Module):
    def __init__(self, how: str, act: str, norm: str, width: int) -> None:
        super().__init__()
        self.how, self.after = how, width
        if how == "in_place_residual":
            # An in-place sum after an in-place ReLU would have no gradient.
            self.a = unit(width, width, "none", norm)
        elif how in ("plain", "residual", "shared", "shared_sum", "mixed_sum"):
            self.a = unit(width, width, act, norm)
        elif how == "down":
            self.after = 8
            self.a = unit(width, 8, act, norm, stride=2)
            self.b = nn.Sequential(nn.Conv2d(width, 8, 1, stride=2), NORMS[norm](8))
        elif how in ("concat", "dense"):
            self.a, self.b = unit(width, 4, act, norm), unit(width, 2, "relu", "batch")
            self.after = 6 if how == "concat" else 4 + width
        elif how == "concat_residual":
            self.a, self.b = unit(width, width - 2, act, norm), unit(width, 2, "relu", "batch")
        elif how == "depthwise":
            self.after = 2 * width
            self.a = unit(width, 2 * width, act, norm, groups=width)
        elif how == "grouped":
            self.a = unit(width, width, act, norm, groups=2)
        elif how in ("gate", "squeeze"):
            self.a = nn.Conv2d(width, width if how == "gate" else 1, 1)
        elif how == "split":
            self.a, self.after = unit(width, 8, act, norm), 4

    def forward(self, x: Tensor) -> Tensor:
        return HOW[self.how](self, x)


def in_place_residual(m: Any, x: Tensor) -> Tensor:
    branch = m.a(x)
    branch += x
    return F.relu(branch, inplace=True)


def split(m: Any, x: Tensor) -> Tensor:
    left, right = m.a(x).chunk(2, dim=1)
    return left + torch.relu(right)


HOW: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "plain": lambda m, x: m.a(x),
    "residual": lambda m, x: torch.add(x, m.a(x), alpha=0.5),
    "in_place_residual": in_place_residual,
    "down": lambda m, x: F.leaky_relu(m.a(x) + m.b(x)),
    "concat": lambda m, x: torch.cat([m.a(x), m.b(x)], dim=1),
    "dense": lambda m, x: torch.cat((x, m.a(x)), 1),
    "concat_residual": lambda m, x: x + torch.cat([m.a(x), m.b(x)], 1),
    "pool": lambda m, x: F.max_pool2d(x, 3, stride=1, padding=1) - 0.5 * F.avg_pool2d(x, 3, 1, 1),
    "shared": lambda m, x: m.a(m.a(x)),
    "shared_sum": lambda m, x: m.a(x) + m.a(-x),
    "mixed_sum": lambda m, x: m.a(x) + m.a(x).mean(dim=1, keepdim=True),
    "depthwise": lambda m, x: m.a(x),
    "grouped": lambda m, x: m.a(x),
    "gate": lambda m, x: x * torch.sigmoid(m.a(x)),
    "squeeze": lambda m, x: x * torch.tanh(m.a(x)),
    "split": split,
    "shift": lambda m, x: F.dropout(x, training=m.training) + 0.3,
    "sine": lambda m, x: torch.sin(x),
}
HEADS = ("flatten", "view", "mean", "adaptive", "tokens", "double_flat")


class Net(nn.Module):
    def __init__(self, plan: list[tuple[str, str, str]], head: str) -> None:
        super().__init__()
        self.head = head
        self.stem = unit(2, 4, "relu", "batch")
        width, size, blocks = 4, 6, []
        for how, act, norm in plan:
            block = Block(how, act, norm, width)
            blocks.append(block)
            width, size = block.after, (size + 1) // 2 if how == "down" else size
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.norm = nn.LayerNorm(width)
        features = {"mean": width, "tokens": width, "adaptive": 4 * width}.get(head, width * size * size)
        self.hidden = nn.Linear(features, 24)
        self.middle = nn.Sequential(nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU())
        self.twice = nn.Linear(16, 16)
        self.last = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem(x))
        if self.head == "flatten":
            x = self.hidden(torch.flatten(x, 1))
        elif self.head == "view":
            x = self.hidden(x.view(x.size(0), -1))
        elif self.head == "mean":
            x = self.hidden(x.mean(dim=(-1, 2)))
        elif self.head == "adaptive":
            x = self.hidden(self.pool(x).reshape(x.shape[0], -1))
        elif self.head == "tokens":
            x = self.hidden(self.norm(x.flatten(2).transpose(1, 2))).amax(1)
        else:
            x = self.hidden(F.relu(x).flatten(1) + x.flatten(1))
        x = self.middle(x)
        return self.last(F.relu(self.twice(F.relu(self.twice(x)))))


def settle(model: nn.Module, seed: int) -> nn.Module:
    """Random weights and running statistics of ordinary size, in eval mode and float64."""
    draw = torch.Generator().manual_seed(seed)
    model.double()
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if not value.is_floating_point():
                continue
            noise = torch.randn(value.shape, generator=draw, dtype=torch.float64)
            if name.endswith("running_var"):
                value.copy_(0.5 + noise.abs())
            elif value.dim() > 1:
                value.copy_(noise / value[0].numel() ** 0.5)
            else:
                value.copy_(noise * 0.5 + (0.6 if name.endswith("weight") else 0.0))
    return model.eval()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def moved_copy(model: nn.Module, move: Move) -> nn.Module:
    other = deepcopy(model)
    apply_move(other, move)
    return other


@torch.no_grad()
def relative_change(model: nn.Module, other: nn.Module, x: Tensor) -> float:
    before, after = model(x), other(x)
    return float((after - before).abs().max() / before.abs().max())


@torch.no_grad()
def relative_move(model: nn.Module, other: nn.Module, names: set[str]) -> float:
    """Over the parameters that a move names: the length it moved them, relative to theirs."""
    pairs = [(a, b) for (n, a), b in zip(model.named_parameters(), other.parameters(), strict=True) if n in names]
    moved = sum(float((a - b).square().sum()) for a, b in pairs)
    return (moved / sum(float(a.square().sum()) for a, _ in pairs)) ** 0.5


def gradients(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    loss = F.cross_entropy(model(x), torch.arange(len(x)) % 3)
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return {n: g for n, g in zip(names, found, strict=True) if g is not None}


def check_move(model: nn.Module, move: Move, x: Tensor, *, tolerance: float = 1e-10) -> None:
    """Logits stay, gradients follow as covectors, weights move, and the inverse undoes the move."""
    other = moved_copy(model, move)
    assert relative_move(model, other, set(move.axes)) > 0.3
    assert relative_change(model, other, x) < tolerance
    after = gradients(other, x)
    for name, gradient in gradients(model, x).items():
        expected = move.covector(name, gradient)
        torch.testing.assert_close(after[name], expected, rtol=1e-8, atol=1e-10 * float(expected.abs().max() + 1))
    apply_move(other, move.inverse())
    for name, value in other.state_dict().items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-10, atol=1e-12)


acts, norms = st.sampled_from(sorted(ACTS)), st.sampled_from(sorted(NORMS))
blocks = st.tuples(st.sampled_from(sorted(HOW)), acts, norms)
networks = st.builds(Net, st.lists(blocks, min_size=1, max_size=3), st.sampled_from(HEADS))


@pytest.mark.long
@settings(
    max_examples=200, suppress_health_check=[HealthCheck.too_slow], phases=(Phase.explicit, Phase.reuse, Phase.generate)
)
@given(networks, st.integers(0, 10_000))
def test_random_residual_networks_keep_function_and_gradients(net: Net, seed: int) -> None:
    model, x = settle(net, seed), normal(3, 2, 6, 6, seed=seed)
    single = deepcopy(model).float()
    for symmetry in (ChangeOfBasis(), Permutation()):
        move = symmetry.move(model, generator=generator(seed))
        check_move(model, move, x)
        # The last hidden layers are free in all of these networks.
        assert symmetry.report(model).free >= 16
        assert relative_change(single, moved_copy(single, move), x.float()) < 1e-4
