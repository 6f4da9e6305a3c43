from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from warp_unlearning.gradients.ghost.geometry import image, plane
from warp_unlearning.gradients.ghost.kernel_gradient import kernel_gradients


@st.composite
def layers(draw: st.DrawFn) -> nn.Conv2d:
    groups = draw(st.integers(1, 2))
    width = draw(st.sampled_from([1, 2, 4, 5]))
    return nn.Conv2d(
        width * groups,
        3 * groups,
        draw(st.tuples(st.integers(1, 3), st.integers(1, 4))),
        stride=draw(st.tuples(st.integers(1, 3), st.integers(1, 2))),
        padding=draw(st.one_of(st.tuples(st.integers(0, 3), st.integers(0, 3)), st.just((0, 0)))),
        dilation=draw(st.tuples(st.integers(1, 2), st.integers(1, 2))),
        groups=groups,
        bias=False,
        padding_mode=draw(st.sampled_from(["zeros", "zeros", "reflect", "circular"])),
    ).double()


def looped(layer: nn.Module, a: Tensor, g: Tensor) -> Tensor:
    """The weight gradient of each image by autograd, with a graph to a and g."""
    rows = [
        torch.autograd.grad(layer(a[i : i + 1]), layer.weight, g[i : i + 1], create_graph=True)[0]
        for i in range(len(a))
    ]
    return torch.stack(rows)


def assert_as_looped(layer: Any, a: Tensor, seed: int, last: bool = False) -> None:
    generator = torch.Generator().manual_seed(seed)
    g = torch.randn(layer(a).shape, generator=generator, dtype=torch.float64)
    if last:
        a, g = (t.contiguous(memory_format=torch.channels_last) for t in (a, g))
    a, g = a.requires_grad_(), g.requires_grad_()
    images, geometry = plane(layer, a)
    found = kernel_gradients(images, image(g), geometry).reshape(len(a), *layer.weight.shape)
    expected = looped(layer, a, g)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)
    u = torch.randn(found.shape, generator=generator, dtype=torch.float64)
    for one, other in zip(*(torch.autograd.grad(m, (a, g), u) for m in (found, expected)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@settings(max_examples=60)
@given(layer=layers(), seed=st.integers(0, 2**16), last=st.booleans())
def test_every_image_has_the_gradient_it_has_alone(layer: Any, seed: int, last: bool) -> None:
    a = torch.randn(3, layer.in_channels, 7, 9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert_as_looped(layer, a, seed, last)


@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"padding": 1}, {"stride": 3, "padding": 2}])
@pytest.mark.parametrize("groups", [1, 2])
def test_kernels_of_one_tap(groups: int, options: dict[str, int]) -> None:
    layer = nn.Conv2d(4, 6, 1, groups=groups, bias=False, **options).double()
    assert_as_looped(layer, torch.randn(2, 4, 5, 6, dtype=torch.float64), 3)


def test_one_dimension() -> None:
    layer = nn.Conv1d(3, 4, 3, stride=2, padding=1, bias=False).double()
    assert_as_looped(layer, torch.randn(3, 3, 8, dtype=torch.float64), 4)


def test_the_graph_to_one_of_both_alone() -> None:
    layer = nn.Conv2d(3, 2, 3, bias=False).double()
    a, g = torch.randn(2, 3, 5, 5, dtype=torch.float64), torch.randn(2, 2, 3, 3, dtype=torch.float64)
    _, geometry = plane(layer, a)
    for one in (a, g):
        one.requires_grad_()
        slope = torch.autograd.grad(kernel_gradients(a, g, geometry).square().sum(), one)[0]
        truth = torch.autograd.grad(looped(layer, a, g).square().sum(), one)[0]
        torch.testing.assert_close(slope, truth, rtol=1e-10, atol=1e-10)
        one.requires_grad_(False)
