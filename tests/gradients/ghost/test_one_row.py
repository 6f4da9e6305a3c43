from __future__ import annotations

import pytest
import torch
from torch import nn

from warp_unlearning.gradients.ghost.linear import LinearRule
from warp_unlearning.gradients.ghost.rule import Part


@pytest.mark.parametrize("names", [["weight"], ["bias"], ["weight", "bias"]])
@pytest.mark.parametrize("wants_a", [True, False])
def test_norms_and_derivatives(names: list[str], wants_a: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    a, g = (torch.randn(4, width, generator=generator, dtype=torch.float64) for width in (5, 3))
    inputs = [a.requires_grad_(), g.requires_grad_()] if wants_a else [g.requires_grad_()]
    found = LinearRule().squared_norms(names, [Part(nn.Linear(5, 3), a, g)])
    of_weight, of_bias = torch.einsum("no,nd->nod", g, a).square().sum((1, 2)), g.square().sum(1)
    expected = of_weight * ("weight" in names) + of_bias * ("bias" in names)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    weights = torch.linspace(0.5, 1.5, 4, dtype=torch.float64)
    pairs = [torch.autograd.grad(n @ weights, inputs, materialize_grads=True) for n in (found, expected)]
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


def test_several_layers() -> None:
    generator = torch.Generator().manual_seed(0)
    parts = [
        Part(nn.Linear(5, 3), *(torch.randn(4, width, generator=generator, dtype=torch.float64) for width in (5, 3)))
        for _ in range(2)
    ]
    rule, names = LinearRule(), ["weight", "bias"]
    expected = sum(rule.squared_norms(names, [part]) for part in parts)
    torch.testing.assert_close(rule.squared_norms(names, parts), expected, rtol=1e-12, atol=0)
