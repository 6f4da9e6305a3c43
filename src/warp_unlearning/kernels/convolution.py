"""Convolutions in a form that a GPU computes faster, with the same result.

- On a map smaller than the kernel, some taps see nothing but padding. They are left out: of a 3x3 kernel on a 1x1 map
  one tap in nine is left, and the convolution is a matrix product.
- An image of few channels, read with stride 2, is first folded: each 2x2 square of pixels becomes one pixel of four
  times the channels, and the kernel, made even with zeros, is folded alike. Matrix units read many channels at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

_FEW_CHANNELS, _LARGE_KERNEL, _ALIGNED = 4, 5, 16
Pair = tuple[int, int]


class Seen(NamedTuple):
    """A rectangle of taps outside of which a kernel sees only padding, and the padding that is left with it."""

    top: int
    bottom: int
    left: int
    right: int
    padding: Pair

    def of(self, kernels: Tensor) -> Tensor:
        """These taps of kernels (out, c, k, l), in the kernels' own memory."""
        return kernels[:, :, self.top : self.bottom, self.left : self.right]


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, *, stride: Pair, padding: Pair) -> Tensor:
    """`F.conv2d` of images (n, c, h, w) with kernels (out, c, k, l), neither dilated nor in groups."""
    if _is_stem(x, weight, stride):
        return _folded(x, weight, bias, padding)
    seen = seen_taps(x, weight, stride=stride, padding=padding)
    if seen is None:
        return torch.conv2d(x, weight, bias, stride, padding)
    taps: Tensor = _Taps.apply(weight, seen)  # type: ignore[no-untyped-call]
    return torch.conv2d(x, taps, bias, stride, seen.padding)


def seen_taps(x: Tensor, weight: Tensor, *, stride: Pair, padding: Pair) -> Seen | None:
    """The taps that see the images, None for all of them; a stem keeps all."""
    found = [
        _seen(size, kernel, step, pad)
        for size, kernel, step, pad in zip(x.shape[2:], weight.shape[2:], stride, padding, strict=True)
    ]
    (rows, down), (columns, right) = found
    if (len(rows), len(columns)) == tuple(weight.shape[2:]) or _is_stem(x, weight, stride):
        return None
    return Seen(rows.start, rows.stop, columns.start, columns.stop, (down, right))


def has_another_form(x: Tensor, weight: Tensor, *, stride: Pair, padding: Pair) -> bool:
    """Whether `convolve` does otherwise than torch."""
    return _is_stem(x, weight, stride) or seen_taps(x, weight, stride=stride, padding=padding) is not None


def cut(kernels: Tensor, seen: Seen, dtype: torch.dtype) -> Tensor:
    """The taps that are seen as kernels of their own, with channels last."""
    taps = seen.of(kernels)
    return torch.empty(taps.shape, dtype=dtype, device=taps.device, memory_format=torch.channels_last).copy_(taps)


def uncut(slope: Tensor, kernels: Tensor, seen: Seen) -> Tensor:
    """The gradient of kernels by that of their taps that are seen, of the kernels' type and layout."""
    whole = torch.zeros_like(kernels)
    seen.of(whole).copy_(slope)
    return whole


def _seen(size: int, kernel: int, stride: int, padding: int) -> tuple[range, int]:
    """Along one axis, the taps that see the map from some output, and the padding that is left with them alone; all of
    them where what is left would differ between the two ends, or where none sees the map.
    """
    outputs = (size + 2 * padding - kernel) // stride + 1
    furthest = (outputs - 1) * stride
    first, last = max(0, padding - furthest), min(kernel, size + padding)
    before, after = padding - first, max(0, furthest + last - size - padding)
    return (range(first, last), before) if before == after and first < last else (range(kernel), padding)


class _Taps(torch.autograd.Function):
    """Some taps of kernels. Its gradient has the memory layout of the kernels, which slicing would not give it."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, seen: Seen) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.seen = seen
        return cut(weight, seen, weight.dtype)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        return uncut(slope, weight, ctx.seen), None


def _is_stem(x: Tensor, weight: Tensor, stride: Pair) -> bool:
    return (
        stride == (2, 2)
        and weight.shape[1] <= _FEW_CHANNELS
        and min(weight.shape[2:]) >= _LARGE_KERNEL
        and not x.requires_grad
    )


def _folded(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair) -> Tensor:
    kernel = [size + size % 2 for size in weight.shape[2:]]
    outputs = [
        (size + 2 * pad - k) // 2 + 1 for size, pad, k in zip(x.shape[2:], padding, weight.shape[2:], strict=True)
    ]
    # As many pixels as the windows of the even kernel reach, which may be fewer than there are.
    reach = [2 * (count - 1) + k for count, k in zip(outputs, kernel, strict=True)]
    (down, right), (high, wide) = padding, x.shape[2:]
    # In the precision of the kernels: half of it is less to fold.
    x = F.pad(x.to(weight.dtype), (right, reach[1] - wide - right, down, reach[0] - high - down))
    weight = F.pad(weight, (0, kernel[1] - weight.shape[3], 0, kernel[0] - weight.shape[2]))
    return torch.conv2d(_fold(x), _fold(weight), bias)


def _fold(x: Tensor) -> Tensor:
    """(n, c, 2h, 2w) as (n, d, h, w) with d = 4c and zeros up to a size that matrix units like, channels last."""
    n, c, h, w = x.shape
    squares = x.reshape(n, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 3, 5, 1).flatten(3)
    return F.pad(squares, (0, -4 * c % _ALIGNED)).permute(0, 3, 1, 2)
