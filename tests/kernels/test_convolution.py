"""Convolutions in other forms beside torch's own, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.nn import functional as F

from warp_unlearning.kernels import convolution
from warp_unlearning.kernels.convolution import convolve


def check(channels: int, high: int, wide: int, kernel: tuple[int, int], stride: int, padding: int, slope: bool) -> None:
    generator = torch.Generator().manual_seed(high)
    x = torch.randn(2, channels, high, wide, dtype=torch.float64, generator=generator).requires_grad_(slope)
    weight = torch.randn(3, channels, *kernel, dtype=torch.float64, generator=generator)
    weight = weight.contiguous(memory_format=torch.channels_last).requires_grad_()
    bias = torch.randn(3, dtype=torch.float64, generator=generator).requires_grad_()
    learned = [weight, bias, *([x] if slope else [])]
    expected = F.conv2d(x, weight, bias, stride, padding)
    found = convolve(x, weight, bias, stride=(stride, stride), padding=(padding, padding))
    torch.testing.assert_close(found, expected)
    dy = torch.randn(expected.shape, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(torch.autograd.grad(found, learned, dy), torch.autograd.grad(expected, learned, dy))


@given(
    channels=st.integers(1, 6),
    high=st.integers(1, 9),
    wide=st.integers(1, 9),
    kernel=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    stride=st.integers(1, 3),
    padding=st.integers(0, 3),
    slope=st.booleans(),
)
def test_every_convolution_is_torchs(
    channels: int, high: int, wide: int, kernel: tuple[int, int], stride: int, padding: int, slope: bool
) -> None:
    assume(high + 2 * padding >= kernel[0] and wide + 2 * padding >= kernel[1])
    check(channels, high, wide, kernel, stride, padding, slope)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "taps"),
    [(1, 3, 1, 1, range(1, 2)), (2, 3, 2, 1, range(1, 3)), (2, 3, 1, 1, range(3)), (8, 3, 1, 1, range(3))],
)
def test_taps_that_see_only_padding_are_left_out(
    size: int, kernel: int, stride: int, padding: int, taps: range
) -> None:
    assert convolution._seen(size, kernel, stride, padding)[0] == taps


def test_the_gradient_of_taps_has_the_layout_of_the_kernels() -> None:
    weight = torch.randn(4, 5, 3, 3).contiguous(memory_format=torch.channels_last).requires_grad_()
    y = convolve(torch.randn(2, 5, 1, 1), weight, None, stride=(1, 1), padding=(1, 1))
    (slope,) = torch.autograd.grad(y.sum(), weight)
    assert slope.stride() == weight.stride()


def test_the_images_stem_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []
    plain = torch.conv2d
    monkeypatch.setattr(
        torch, "conv2d", lambda x, w, *rest: shapes.append((tuple(x.shape), tuple(w.shape))) or plain(x, w, *rest)
    )
    convolve(torch.randn(2, 3, 32, 32), torch.randn(8, 3, 7, 7), None, stride=(2, 2), padding=(3, 3))
    assert shapes == [((2, 16, 19, 19), (8, 16, 4, 4))]
