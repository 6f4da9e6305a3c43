"""Max-pooling of images whose channels are last in memory.

Forward notes which tap of its window each output came from. Backward goes over the inputs, each of which looks into
the few windows that it lies in: nothing is added atomically, and results are the same each time. `FastLayers` calls it.
"""

# Triton's language is not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

_PLACES, _CHANNELS = 64, 64


def max_pool(x: Tensor, *, size: int, stride: int, padding: int) -> Tensor:
    """The largest entry of each window of images (n, c, h, w), the first of several; nan where there is one."""
    found: Tensor = _MaxPool.apply(x, size, stride, padding)
    return found


def suits(x: Tensor) -> bool:
    """Whether `max_pool` can be used: images of at most float32 with channels last."""
    return (
        x.dim() == 4
        and x.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.numel() < 2**31
    )


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x, size, stride, padding):
        """The pooled images; `taps`, kept for the way back, says which entry of its window each output is."""
        n, c, h, w = x.shape
        out_h, out_w = ((v + 2 * padding - size) // stride + 1 for v in (h, w))
        y = torch.empty((n, c, out_h, out_w), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        taps = torch.empty_like(y, dtype=torch.int8)
        _forward[_grid(n * out_h * out_w, c)](
            x, y, taps, n * out_h * out_w, c, h, w, out_h, out_w,
            SIZE=size, STRIDE=stride, PADDING=padding, PLACES=_PLACES, CHANNELS=_CHANNELS,
        )  # fmt: skip
        ctx.save_for_backward(taps)
        ctx.window, ctx.given = (size, stride, padding), (h, w)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy):
        """The gradient at the images: each entry gathers dy of the outputs that it became."""
        (taps,) = ctx.saved_tensors
        (size, stride, padding), (h, w) = ctx.window, ctx.given
        n, c, out_h, out_w = taps.shape
        if dy.stride() != taps.stride():
            dy = torch.empty_like(taps, dtype=dy.dtype).copy_(dy)
        dx = torch.empty((n, c, h, w), dtype=dy.dtype, device=dy.device, memory_format=torch.channels_last)
        _backward[_grid(n * h * w, c)](
            dy, taps, dx, n * h * w, c, h, w, out_h, out_w,
            SIZE=size, STRIDE=stride, PADDING=padding, PLACES=_PLACES, CHANNELS=_CHANNELS,
        )  # fmt: skip
        return dx, None, None, None


def _grid(places: int, channels: int) -> tuple[int, int]:
    """How many programs are launched: blocks of places by blocks of channels."""
    return triton.cdiv(places, _PLACES), triton.cdiv(channels, _CHANNELS)


@triton.jit(do_not_specialize=("places",))
def _forward(
    x, y, taps, places, channels, h, w, out_h, out_w,
    SIZE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, PLACES: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The largest entry of the windows of one block of outputs, and its tap: row-major within the window."""
    place = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    known = (place < places)[:, None] & (c < channels)[None, :]
    image, row, column = place // (out_h * out_w), place // out_w % out_h, place % out_w
    best = tl.full((PLACES, CHANNELS), float("-inf"), tl.float32)
    which = tl.zeros((PLACES, CHANNELS), tl.int32)
    for tap in tl.static_range(SIZE * SIZE):
        i = row * STRIDE - PADDING + tap // SIZE
        j = column * STRIDE - PADDING + tap % SIZE
        inside = known & ((i >= 0) & (i < h) & (j >= 0) & (j < w))[:, None]
        at = ((image * h + i) * w + j)[:, None] * channels + c[None, :]
        value = tl.load(x + at, mask=inside, other=float("-inf")).to(tl.float32)
        better = (value > best) | (value != value)
        best, which = tl.where(better, value, best), tl.where(better, tap, which)
    at = place[:, None] * channels + c[None, :]
    tl.store(y + at, best.to(y.dtype.element_ty), mask=known)
    tl.store(taps + at, which.to(tl.int8), mask=known)


@triton.jit(do_not_specialize=("places",))
def _backward(
    dy, taps, dx, places, channels, h, w, out_h, out_w,
    SIZE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, PLACES: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The gradient at one block of inputs: dy summed over the windows whose largest entry each of them is."""
    place = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    known = (place < places)[:, None] & (c < channels)[None, :]
    image, row, column = place // (h * w), place // w % h, place % w
    total = tl.zeros((PLACES, CHANNELS), tl.float32)
    WINDOWS: tl.constexpr = (SIZE + STRIDE - 1) // STRIDE
    for window in tl.static_range(WINDOWS * WINDOWS):
        i = (row + PADDING) // STRIDE - window // WINDOWS
        j = (column + PADDING) // STRIDE - window % WINDOWS
        down, right = row + PADDING - i * STRIDE, column + PADDING - j * STRIDE
        there = (i >= 0) & (i < out_h) & (j >= 0) & (j < out_w) & (down < SIZE) & (right < SIZE)
        inside = known & there[:, None]
        at = ((image * out_h + i) * out_w + j)[:, None] * channels + c[None, :]
        mine = tl.load(taps + at, mask=inside, other=-1).to(tl.int32) == (down * SIZE + right)[:, None]
        slope = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        total += tl.where(inside & mine, slope, 0.0)
    tl.store(dx + place[:, None] * channels + c[None, :], total.to(dx.dtype.element_ty), mask=known)
