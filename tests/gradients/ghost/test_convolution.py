from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from warp_unlearning.gradients.ghost import convolution
from warp_unlearning.gradients.ghost.convolution import ConvolutionRule


@st.composite
def layers(draw: st.DrawFn) -> nn.Module:
    groups = draw(st.integers(1, 2))
    return nn.Conv2d(
        2 * groups,
        3 * groups,
        draw(st.tuples(st.integers(1, 3), st.integers(1, 4))),
        stride=draw(st.tuples(st.integers(1, 3), st.integers(1, 2))),
        padding=draw(st.tuples(st.integers(0, 4), st.integers(0, 3))),
        dilation=draw(st.tuples(st.integers(1, 2), st.integers(1, 2))),
        groups=groups,
        bias=False,
    ).double()


def norms_and_pullbacks(norms: Tensor, a: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    return norms.detach(), *torch.autograd.grad(norms @ torch.linspace(0.5, 1.5, len(a)).double(), (a, g))


@pytest.mark.parametrize("gram", [True, False])
@pytest.mark.parametrize("elements", [1, 10**9])
@settings(max_examples=40)
@given(layer=layers(), seed=st.integers(0, 2**16))
def test_both_contractions_in_any_chunks(layer: Any, seed: int, gram: bool, elements: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(3, layer.in_channels, 7, 9, generator=generator, dtype=torch.float64, requires_grad=True)
    shape = layer(a).shape
    g = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
    rule = ConvolutionRule()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution, "_by_gram", lambda *_: gram)
        patch.setattr(convolution, "CHUNK_ELEMENTS", elements)
        found = norms_and_pullbacks(rule.squared_norm(layer, "weight", a, g), a, g)
    squares = rule.gradient(layer, "weight", a, g).flatten(1).square().sum(1)
    for one, other in zip(found, norms_and_pullbacks(squares, a, g), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@given(layer=layers(), seed=st.integers(0, 2**16))
@settings(max_examples=20)
def test_gradients_sum_to_autograds(layer: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(3, layer.in_channels, 7, 9, generator=generator, dtype=torch.float64)
    output = layer(a)
    g = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    (expected,) = torch.autograd.grad(output, layer.weight, g)
    torch.testing.assert_close(ConvolutionRule().gradient(layer, "weight", a, g).sum(0), expected)


@pytest.mark.parametrize(("size", "channels", "gram"), [(4, 512, True), (8, 256, True), (32, 64, False)])
def test_the_cheaper_contraction_is_chosen(size: int, channels: int, gram: bool) -> None:
    layer = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
    a = torch.empty(2, channels, size, size)
    images, geometry = convolution.plane(layer, a)
    assert convolution._by_gram(images, a, geometry) is gram


def test_chunks_share_the_batch_equally(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Conv2d(64, 64, 3, padding=1, bias=False)
    a = torch.empty(10, 64, 32, 32)
    images, geometry = convolution.plane(layer, a)
    monkeypatch.setattr(convolution, "CHUNK_ELEMENTS", 9 * layer.weight.numel())
    assert convolution._chunk(images, a, geometry) == 5
