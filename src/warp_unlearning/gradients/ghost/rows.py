"""Images (n, channels, height, width) as rows of channels, one for each position, and the windows a kernel sees."""

from __future__ import annotations

import torch
from torch import Tensor

Size = tuple[int, int]


def as_rows(x: Tensor) -> Tensor:
    """(n, positions, channels)."""
    if x.is_contiguous(memory_format=torch.channels_last):
        count, channels, height, width = x.shape
        positions = height * width
        # One view where there would be two.
        return x.as_strided((count, positions, channels), (positions * channels, channels, 1))
    return x.flatten(2).mT


def as_image(rows: Tensor, like: Tensor) -> Tensor:
    """The inverse of `as_rows` for images of the height and width of `like`."""
    (count, positions, channels), (height, width) = rows.shape, like.shape[2:]
    if rows.is_contiguous():
        strides = (positions * channels, 1, width * channels, channels)
        return rows.as_strided((count, channels, height, width), strides)
    return rows.mT.reshape(count, channels, height, width)


def padded(x: Tensor, padding: Size) -> Tensor:
    """Zeros around, or as much cut off where padding is negative, shape (n, height, width, channels), contiguous."""
    return _with_zeros(x, padding).permute(0, 2, 3, 1).contiguous()


def padded_rows(x: Tensor, padding: Size) -> tuple[Tensor, Size]:
    """The same as rows (n, positions, channels), contiguous, and the height and width."""
    around = _with_zeros(x, padding)
    return as_rows(around).contiguous(), (around.shape[2], around.shape[3])


def _with_zeros(x: Tensor, padding: Size) -> Tensor:
    down, right = padding
    return torch.constant_pad_nd(x, (right, right, down, down)) if down or right else x


def windows_along(size: Size, taps: Size, *, stride: Size, dilation: Size) -> Size:
    """How many windows of `taps` fit into `size`, along the height and the width."""
    tall, wide = (
        (length - d * (k - 1) - 1) // s + 1 for length, k, s, d in zip(size, taps, stride, dilation, strict=True)
    )
    return tall, wide


def windows(x: Tensor, taps: Size, *, stride: Size, padding: Size, dilation: Size) -> Tensor:
    """What a kernel sees at each of its positions in the padded x, shape (n, positions, taps·channels).

    One copy: `F.unfold` takes one step for each image on a GPU.
    """
    grid = padded(x, padding)
    count, height, width, channels = grid.shape
    fit = windows_along((height, width), taps, stride=stride, dilation=dilation)
    each, down, right, _ = grid.stride()
    strides = (each, stride[0] * down, stride[1] * right, dilation[0] * down, dilation[1] * right, 1)
    return grid.as_strided((count, *fit, *taps, channels), strides).reshape(count, fit[0] * fit[1], -1)


def side_by_side(x: Tensor) -> Tensor:
    """One image (1, n·channels, height, width) with the channels of all, running fastest."""
    height, width = x.shape[2:]
    return x.permute(2, 3, 0, 1).reshape(1, height, width, -1).permute(0, 3, 1, 2)
