"""What enters each linear map of a network, by one forward pass over the data.

For a Linear layer an input is a row of the last axis; for a convolution it is a patch, unfolded with the layer's own
kernel, stride, padding and dilation, laid out as (channels, taps) like a row of the flattened weight. So W flattened to
(out, d) acts on inputs of length d, and ΔW with ΔW p = 0 for every input p leaves the layer's output unchanged. Each
group of a grouped convolution has inputs of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..kernels.one_pixel_norm import one_pixel_norms
from .linear_weights import LinearWeight, linear_weights

Record = Callable[[LinearWeight, nn.Module, Tensor], None]


def run_watched(
    model: nn.Module,
    batches: Iterable[Tensor],
    layers: Iterable[nn.Module],
    record: Callable[[nn.Module, Tensor], None],
) -> None:
    """Run the model, as it stands, over the batches and show `record` every input of the given layers.

    What is shown is the layer's own input, which a later in-place operation may write over: it must be used at once.
    """

    def hook(layer: nn.Module, args: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        # What is made of inputs is many small operations, none of which has to be looked at.
        with torch._C.DisableTorchFunction():
            record(layer, (args[0] if args else named["input"]).detach())

    handles = [layer.register_forward_pre_hook(hook, with_kwargs=True) for layer in layers]
    try:
        with torch.no_grad():
            for x in batches:
                with one_pixel_norms():
                    model(x)
    finally:
        for handle in handles:
            handle.remove()


def observe_inputs(model: nn.Module, batches: Iterable[Tensor], record: Record) -> None:
    """`run_watched` over every layer of every linear weight, which `record` is told too."""
    weights = {layer: weight for weight in linear_weights(model) for layer in weight.layers}
    run_watched(model, batches, weights, lambda layer, x: record(weights[layer], layer, x))


def input_second_moments(model: nn.Module, batches: Iterable[Tensor]) -> dict[str, Tensor]:
    """C = Σ p pᵀ in float64, shape (d, d), for each weight of a Linear or ungrouped Conv1d/Conv2d, keyed by the
    weight's name.

    The model is evaluated as it stands (put it in eval mode) and is left unchanged. A weight used by several modules
    sums the inputs of all. Layers that are never reached, or whose weight is not a parameter, have no entry.
    """
    weight_names = {id(p): name for name, p in model.named_parameters()}
    moments: dict[str, Tensor] = {}

    def record(module: nn.Module, x: Tensor) -> None:
        columns = layer_columns(module, x).double()
        moment = columns.mT @ columns
        name = weight_names[id(module.weight)]
        moments[name] = moments[name] + moment if name in moments else moment

    # A weight that is computed from others at every call (a parametrisation) is no parameter that could be moved.
    layers = [m for m in model.modules() if has_linear_inputs(m) and id(m.weight) in weight_names]
    run_watched(model, batches, layers, record)
    return moments


def reached_inputs(model: nn.Module, batches: Iterable[Tensor]) -> dict[str, Tensor]:
    """Which coordinates of each linear weight's inputs are ever other than zero: bool (groups, d), by weight name.

    The coordinates are those of a row of the flattened weight, without a constant for the bias. A tap that meets
    nothing but padding, or a channel that is never active, is not reached: the weights behind it do nothing.
    """
    reached: dict[str, Tensor] = {}

    def record(weight: LinearWeight, layer: nn.Module, x: Tensor) -> None:
        # Whether a coordinate is reached is a question about sums of |x|, which commute with unfolding.
        x = _batched(layer, x) if isinstance(layer, nn.Conv1d | nn.Conv2d) else x.reshape(-1, x.shape[-1])
        size = x.abs().amax(0, keepdim=True)
        found = (layer_rows(layer, size) != 0).any(1).repeat_interleave(weight.groups // groups_of(layer), 0)
        reached[weight.name] = reached[weight.name] | found if weight.name in reached else found

    observe_inputs(model, batches, record)
    return reached


def has_linear_inputs(module: nn.Module) -> bool:
    """Whether the module is one whose inputs `layer_columns` can lay out."""
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        return module.groups == 1 and module.padding_mode == "zeros"
    return isinstance(module, nn.Linear)


def layer_columns(module: nn.Module, x: Tensor) -> Tensor:
    """The inputs of one ungrouped layer as rows, shape (positions, d)."""
    return layer_rows(module, x)[0]


def layer_rows(module: nn.Module, x: Tensor, *, taps: Taps | None = None) -> Tensor:
    """The inputs of each group of one layer as rows, shape (groups, positions, d); of a convolution, those that `taps`
    of its kernel read, where they are given.
    """
    if not isinstance(module, nn.Conv1d | nn.Conv2d):
        return x.reshape(1, -1, x.shape[-1])
    window = Window(module)
    # Positions stay side by side in memory: turning patches around costs more than their use.
    patches = window.patches(x, window.all_taps if taps is None else taps)
    return patches.reshape(module.groups, -1, patches.shape[3:].numel()).mT


def groups_of(module: nn.Module) -> int:
    """How many groups of output rows see inputs of their own."""
    return module.groups if isinstance(module, nn.Conv1d | nn.Conv2d) else 1


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
        x = _batched(self.layer, x)
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
            image = _batched(self.layer, x)
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


def _batched(layer: nn.Conv1d | nn.Conv2d, x: Tensor) -> Tensor:
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
