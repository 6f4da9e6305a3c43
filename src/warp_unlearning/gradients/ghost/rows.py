"""Images (n, channels, height, width) as rows of channels, one for each position, and the windows a kernel sees."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

Size = tuple[int, int]


def as_rows(x: Tensor) -> Tensor:
    """(n, positions, channels)."""
    return x.flatten(2).mT


def as_image(rows: Tensor, like: Tensor) -> Tensor:
    """The inverse of `as_rows` for images of the height and width of `like`."""
    return rows.mT.reshape(rows.shape[0], -1, *like.shape[2:])


def padded(x: Tensor, padding: Size) -> Tensor:
    """Zeros around, or as much cut off where padding is negative, shape (n, height, width, channels), contiguous."""
    down, right = padding
    around = F.pad(x, (right, right, down, down)) if any(padding) else x
    return around.permute(0, 2, 3, 1).contiguous()


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
