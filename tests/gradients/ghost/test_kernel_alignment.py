from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from warp_unlearning.gradients.ghost.convolution import ConvolutionRule
from warp_unlearning.gradients.ghost.rule import GhostRule


@st.composite
def layers(draw: st.DrawFn) -> nn.Conv2d:
    groups = draw(st.integers(1, 2))
    width = draw(st.sampled_from([1, 2, 4, 5]))
    return nn.Conv2d(
        width * groups,
        3 * groups,
        draw(st.tuples(st.integers(1, 3), st.integers(1, 4))),
        stride=draw(st.tuples(st.integers(1, 3), st.integers(1, 2))),
        padding=draw(st.one_of(st.tuples(st.integers(0, 3), st.integers(0, 3)), st.sampled_from([(0, 0), "valid"]))),
        dilation=draw(st.tuples(st.integers(1, 2), st.integers(1, 2))),
        groups=groups,
        padding_mode=draw(st.sampled_from(["zeros", "zeros", "reflect", "circular"])),
    ).double()


def assert_as_the_inner_product(layer: Any, a: Tensor, name: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    output = layer(a)
    g = torch.randn(output.shape, generator=generator, dtype=torch.float64).requires_grad_()
    parameter, a = getattr(layer, name), a.requires_grad_()
    t = torch.randn(len(a), *parameter.shape, generator=generator, dtype=torch.float64)
    rows = [
        torch.autograd.grad(layer(a[i : i + 1]), parameter, g[i : i + 1], create_graph=True)[0] for i in range(len(a))
    ]
    expected = (torch.stack(rows) * t).flatten(1).sum(1)
    found = ConvolutionRule().alignment(layer, name, a, g, t)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    weights = torch.linspace(0.5, 1.5, len(a)).double()
    slopes = (
        torch.autograd.grad(v @ weights, (a, g), allow_unused=True, materialize_grads=True) for v in (found, expected)
    )
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@settings(max_examples=60)
@given(layer=layers(), name=st.sampled_from(["weight", "weight", "bias"]), seed=st.integers(0, 2**16))
def test_products_with_a_direction_of_each_images_own(layer: Any, name: str, seed: int) -> None:
    a = torch.randn(3, layer.in_channels, 7, 9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert_as_the_inner_product(layer, a, name, seed)


@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"padding": 1}, {"stride": 3, "padding": 2}])
@pytest.mark.parametrize("groups", [1, 2])
def test_kernels_of_one_tap(groups: int, options: dict[str, int]) -> None:
    layer = nn.Conv2d(4, 6, 1, groups=groups, **options).double()
    assert_as_the_inner_product(layer, torch.randn(2, 4, 5, 6, dtype=torch.float64), "weight", 3)


def test_one_dimension() -> None:
    layer = nn.Conv1d(3, 4, 3, stride=2, padding=1).double()
    assert_as_the_inner_product(layer, torch.randn(3, 3, 8, dtype=torch.float64), "weight", 4)


def test_a_rule_that_says_nothing_of_it_takes_the_gradient() -> None:
    class Outer(GhostRule):
        def gradient(self, layer: nn.Module, name: str, a: Tensor, g: Tensor) -> Tensor:
            return torch.einsum("no,ni->noi", g, a)

    generator = torch.Generator().manual_seed(0)
    a, g, t = (torch.randn(*s, generator=generator, dtype=torch.float64) for s in ((3, 4), (3, 2), (3, 2, 4)))
    found = Outer().alignment(nn.Linear(4, 2), "weight", a, g, t)
    expected = torch.tensor([float(g[i] @ t[i] @ a[i]) for i in range(3)], dtype=torch.float64)
    torch.testing.assert_close(found, expected)
