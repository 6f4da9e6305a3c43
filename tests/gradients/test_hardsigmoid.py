"""Gradient energies through hardsigmoid, of which torch has no second derivative."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from warp_unlearning.gradients.energy import gradient_energy


class Inline(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.hardsigmoid(x)


class ByHand(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.clamp(x / 6 + 0.5, 0, 1)


class Excited(nn.Module):
    """A convolution, gates for its channels from their means, and a table that no rule knows."""

    def __init__(self, gate: nn.Module) -> None:
        super().__init__()
        self.conv, self.norm, self.gate = nn.Conv2d(2, 6, 3, bias=False), nn.BatchNorm2d(6), gate
        self.squeeze, self.last = nn.Linear(6, 6), nn.Linear(6, 3)
        self.table = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardswish(self.norm(self.conv(x)))
        gates = self.gate(12 * self.squeeze(x.mean((2, 3))) * self.table)
        out: Tensor = self.last((x * gates[:, :, None, None]).mean((2, 3)))
        return out


def network(gate: nn.Module) -> tuple[Excited, Tensor, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Excited(gate).double()
        x, y = torch.randn(40, 2, 5, 5).double(), torch.arange(40) % 3
        model(3 * x)
    return model.eval(), x, y


@pytest.mark.parametrize(
    "gate", [nn.Hardsigmoid, lambda: nn.Hardsigmoid(inplace=True), Inline], ids=["layer", "in place", "function"]
)
def test_the_energy_and_its_gradient_are_those_of_a_clamp(
    gate: Callable[[], nn.Module], assert_exact: Callable[..., None]
) -> None:
    model, x, y = network(gate())
    with torch.no_grad():
        gates = model.squeeze(F.hardswish(model.norm(model.conv(x))).mean((2, 3))) * 12
    assert 0.1 < float((gates.abs() > 3).double().mean()) < 0.9
    clamped = network(ByHand())[0]
    found = gradient_energy(model, x, y)
    assert_exact(clamped, x, y)
    torch.testing.assert_close(found, gradient_energy(clamped, x, y), rtol=1e-12, atol=0)
    slopes = [
        torch.autograd.grad(e.sum(), list(m.parameters()))
        for e, m in ((found, model), (gradient_energy(clamped, x, y), clamped))
    ]
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
