from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.gradients.energy import gradient_energy
from warp_unlearning.gradients.ghost.one_row import one_row_entry
from warp_unlearning.gradients.ghost.summand import summed


def rows(seed: int, *, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    a, g = (torch.randn(3, width, generator=generator, dtype=torch.float64).to(dtype) for width in (5, 4))
    return a.requires_grad_(), g.requires_grad_()


def by_definition(a: Tensor, g: Tensor) -> Tensor:
    return (g[:, :, None] * a[:, None]).flatten(1).square().sum(1)


@pytest.mark.parametrize("of_others", [torch.float64, torch.float32])
def test_summands_are_added_and_differentiated_together(of_others: torch.dtype) -> None:
    pairs = [rows(0), rows(1, dtype=of_others), rows(2)]
    found = summed([one_row_entry(a, g, weight=True, bias=False) for a, g in pairs])
    expected = torch.stack([by_definition(a.double(), g.double()) for a, g in pairs]).sum(0)
    tolerance = 1e-11 if of_others == torch.float64 else 1e-5
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=0)
    tensors = [tensor for pair in pairs for tensor in pair]
    weights = torch.linspace(0.5, 1.5, 3, dtype=torch.float64)
    slopes = [torch.autograd.grad(n @ weights, tensors, retain_graph=True) for n in (found, expected, found)]
    for one, other, again, tensor in zip(*slopes, tensors, strict=True):
        assert one.dtype == tensor.dtype
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(one, again, rtol=0, atol=0)


def test_rows_written_over_are_noticed() -> None:
    a, g = rows(0)
    found = summed([one_row_entry(a, g, weight=True, bias=False)])
    with torch.no_grad():
        a.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(found.sum(), g)


class Sorts(nn.Module):
    """Layers of every kind that has a summand, and one that has none: kernels with a shift, and rows of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(2))
        self.second = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.tokens = nn.Linear(4, 4)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norms[0](self.first(x)).sin()
        h = self.norms[1](self.second(h)).tanh()
        return self.last(self.tokens(h.flatten(2).mT).sin().mean(1))


@pytest.mark.parametrize("frozen", [(), ("first.weight", "norms.0.weight"), ("second.weight", "last.weight")])
def test_layers_with_and_without(
    assert_exact: Any, drawn: Any, examples: Any, as_on_a_gpu: Any, frozen: tuple[str, ...]
) -> None:
    model, (x, y) = drawn(Sorts), examples(3, 2, 5, 5)
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    assert_exact(model, x, y)
    with as_on_a_gpu():
        assert_exact(model, x, y)


def test_energies_are_differentiated_once_and_again(drawn: Any, examples: Any, as_on_a_gpu: Any) -> None:
    model = drawn(Sorts)
    with as_on_a_gpu():
        total = gradient_energy(model, *examples(3, 2, 5, 5)).sum()
    once, again = (torch.autograd.grad(total, list(model.parameters()), retain_graph=True) for _ in range(2))
    for one, other in zip(once, again, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
