"""Where the kernel of a convolution stands on its input, and which of its taps read what there."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .linear_weights import LinearWeight


def kernel_of(weight: LinearWeight) -> tuple[int, int]:
    """Rows and columns of the kernel of a convolution's weight; one of each for that of a Linear layer."""
    return _pair(tuple(weight.tensor.shape[2:])) if weight.tensor.dim() > 2 else (1, 1)


class Taps(NamedTuple):
    """A rectangle of a kernel: rows `top` to `bottom`, columns `left` to `right`, the ends not included."""

    top: int
    bottom: int
    left: int
    right: int

    def holds(self, other: Taps) -> bool:
        """Whether the other lies within this one."""
        above, below = self.top <= other.top, other.bottom <= self.bottom
        return above and below and self.left <= other.left and other.right <= self.right

    def coordinates(self, kernel: tuple[int, int], channels: int) -> Tensor:
        """Where its entries lie in the rows of a flattened weight, int64, in ascending order."""
        every = torch.arange(channels * kernel[0] * kernel[1]).reshape(channels, *kernel)
        return every[:, self.top : self.bottom, self.left : self.right].flatten().contiguous()


class Window:
    """The patches of a convolution, as of a two-dimensional one on an image that is already padded."""

    def __init__(self, layer: nn.Conv1d | nn.Conv2d) -> None:
        self.layer = layer
        given = layer.padding
        padding = given if isinstance(given, str) else tuple(given)
        self._shape = _kernel_shape(tuple(layer.kernel_size), tuple(layer.stride), tuple(layer.dilation), padding)
        self.kernel, self.stride, self.dilation = self._shape.kernel, self._shape.stride, self._shape.dilation

    def padded(self, x: Tensor) -> Tensor:
        """The layer's input with its padding, shape (batch, channels, height, width)."""
        x = batched(self.layer, x)
        if self._shape.pads:
            sides = _padding(self.layer)
            zeros = self.layer.padding_mode == "zeros"
            x = torch.constant_pad_nd(x, sides) if zeros else F.pad(x, sides, mode=self.layer.padding_mode)
        return x if isinstance(self.layer, nn.Conv2d) else x.unsqueeze(-2)

    def grid(self, x: Tensor) -> tuple[int, int]:
        """How many places the kernel has on the layer's input, down and across."""
        return _grid(self._shape, self._size(x))

    def _size(self, x: Tensor) -> tuple[int, int]:
        shape = x.shape
        return (shape[-2], shape[-1]) if isinstance(self.layer, nn.Conv2d) else (1, shape[-1])

    @property
    def all_taps(self) -> Taps:
        """The whole kernel."""
        return Taps(0, self.kernel[0], 0, self.kernel[1])

    def met_taps(self, x: Tensor) -> Taps:
        """The smallest rectangle that holds every tap which meets something other than a padding of zeros, by the shape
        of the layer's input alone; the whole kernel where none does.
        """
        found = _met_taps(self._shape, self._size(x)) if self.layer.padding_mode == "zeros" else None
        return self.all_taps if found is None else found

    def patches(self, x: Tensor, taps: Taps) -> Tensor:
        """What the taps read at every place of the kernel on the layer's input: a view of the padded images, shape
        (channels, rows and columns of the taps, images, places down, places across).

        `F.unfold` launches a kernel for every image on a GPU; one copy of this view is one.
        """
        down, across = self.grid(x)
        (dy, dx), (sy, sx) = self.dilation, self.stride
        top, left = taps.top * dy, taps.left * dx
        if self._shape.pads and _stays_inside(self._shape, self._size(x), taps):
            image = batched(self.layer, x)
            image = image if isinstance(self.layer, nn.Conv2d) else image.unsqueeze(-2)
            top, left = top - self._shape.above, left - self._shape.before
        else:
            image = self.padded(x)
        of_image, of_channel, of_row, of_column = image.stride()
        first = image.storage_offset() + top * of_row + left * of_column
        shape = (image.shape[1], taps.bottom - taps.top, taps.right - taps.left, len(image), down, across)
        strides = (of_channel, dy * of_row, dx * of_column, of_image, sy * of_row, sx * of_column)
        return image.as_strided(shape, strides, first)


class _KernelShape(NamedTuple):
    """A kernel, as one on images of two dimensions, and the padding on each side of them."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    above: int
    below: int
    before: int
    after: int

    @property
    def pads(self) -> bool:
        """Whether there is any padding."""
        return bool(self.above or self.below or self.before or self.after)


# What follows from the settings of a layer and the size of its input alone is asked at every call of every layer.
@lru_cache(maxsize=512)
def _kernel_shape(
    kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...], padding: str | tuple[int, ...]
) -> _KernelShape:
    before, after, *others = _sides(kernel, dilation, padding)
    above, below = others or (0, 0)
    return _KernelShape(_pair(kernel), _pair(stride), _pair(dilation), above, below, before, after)


@lru_cache(maxsize=512)
def _grid(shape: _KernelShape, size: tuple[int, int]) -> tuple[int, int]:
    """How many places a kernel has on an image of so many rows and columns, before padding, down and across."""
    padded = (size[0] + shape.above + shape.below, size[1] + shape.before + shape.after)
    down, across = (
        (n - d * (k - 1) - 1) // s + 1
        for n, d, k, s in zip(padded, shape.dilation, shape.kernel, shape.stride, strict=True)
    )
    return down, across


@lru_cache(maxsize=512)
def _met_taps(shape: _KernelShape, size: tuple[int, int]) -> Taps | None:
    """The smallest rectangle that holds every tap which meets an image of that size; None where there is no padding, or
    none that does.
    """
    if not shape.pads:
        return None
    ends: list[int] = []
    for before, n, places, s, d, k in zip(
        (shape.above, shape.before),
        size,
        _grid(shape, size),
        shape.stride,
        shape.dilation,
        shape.kernel,
        strict=True,
    ):
        met = [i for i in range(k) if any(0 <= i * d + o * s - before < n for o in range(places))]
        if not met:
            return None
        ends += [met[0], met[-1] + 1]
    return Taps(*ends)


@lru_cache(maxsize=512)
def _stays_inside(shape: _KernelShape, size: tuple[int, int], taps: Taps) -> bool:
    """Whether the taps read nothing of the padding at any place of the kernel on an image of that size."""
    ends = ((taps.top, taps.bottom), (taps.left, taps.right))
    for (first, end), before, n, places, s, d in zip(
        ends, (shape.above, shape.before), size, _grid(shape, size), shape.stride, shape.dilation, strict=True
    ):
        if first * d < before or (end - 1) * d + (places - 1) * s - before >= n:
            return False
    return True


def batched(layer: nn.Conv1d | nn.Conv2d, x: Tensor) -> Tensor:
    """The layer's input as a batch, of one image where it is none."""
    return x if x.dim() == layer.weight.dim() else x.unsqueeze(0)


def _pair(values: tuple[int, ...]) -> tuple[int, int]:
    return (values[0], values[1]) if len(values) == 2 else (1, values[0])


def _padding(module: nn.Conv1d | nn.Conv2d) -> list[int]:
    """Before and after, last axis first, as F.pad takes it, also where the layer says "same" or "valid"."""
    return _sides(module.kernel_size, module.dilation, module.padding)


def _sides(kernel: tuple[int, ...], dilation: tuple[int, ...], padding: str | tuple[int, ...]) -> list[int]:
    if padding == "valid":
        return [0] * (2 * len(kernel))
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return [side for total in reversed(totals) for side in (total // 2, total - total // 2)]
    return [side for p in reversed(cast("tuple[int, ...]", padding)) for side in (p, p)]
