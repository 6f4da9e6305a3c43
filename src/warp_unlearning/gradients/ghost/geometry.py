"""A Conv1d or Conv2d as a two-dimensional convolution with zero padding of equal size on both sides."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Geometry:
    """How a kernel (out, in / groups, *size) meets an image; pairs are (height, width)."""

    out: int
    width: int
    size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Find the hash once: geometries are looked up far more often than made."""
        values = (self.out, self.width, self.size, self.stride, self.padding, self.dilation, self.groups)
        object.__setattr__(self, "_hash", hash(values))

    def __hash__(self) -> int:
        return self._hash

    @property
    def patch(self) -> int:
        """Elements of a patch that one group sees."""
        return self.width * self.size[0] * self.size[1]

    @property
    def is_pointwise(self) -> bool:
        """Whether every output is one input's, so that nothing is to be laid out."""
        return self.size == (1, 1) and self.stride == (1, 1) and self.padding == (0, 0)

    @cached_property
    def steps_over(self) -> bool:
        """Whether a kernel of one tap steps over inputs."""
        return self.size == (1, 1) and self.padding == (0, 0) and self.stride != (1, 1)

    @cached_property
    def is_fast_in_groups(self) -> bool:
        """Whether a GPU may have a fast convolution of many such groups: for channels in fours and a stride of 1.

        A single tap is a plain product.
        """
        plain = self.stride == (1, 1) and self.size != (1, 1)
        return plain and self.width % 4 == 0 and self.out % 4 == 0

    @cached_property
    def turned_padding(self) -> tuple[int, int]:
        """What an output is padded by where the kernel, turned, runs over it with a stride of 1 to give an input."""
        down, right = (d * (k - 1) - p for d, k, p in zip(self.dilation, self.size, self.padding, strict=True))
        return down, right


@lru_cache(maxsize=256)
def in_groups(geometry: Geometry, count: int) -> Geometry:
    """The geometry of `count` groups, each of which is what it was."""
    return replace(geometry, groups=count)


@lru_cache(maxsize=256)
def without_idle_taps(geometry: Geometry, inputs: tuple[int, int], outputs: tuple[int, int]) -> Geometry:
    """The geometry less the outermost taps that see padding alone, on images of such heights and widths.

    Their part of the kernel gradient is 0. A geometry that would have other outputs then is left as it is.
    """
    spans = [_taps_in_use(geometry, axis, inputs[axis], outputs[axis]) for axis in (0, 1)]
    sizes = [len(span) for span in spans]
    paddings = [p - d * span.start for p, d, span in zip(geometry.padding, geometry.dilation, spans, strict=True)]
    for axis in (0, 1):
        rest = inputs[axis] + 2 * paddings[axis] - geometry.dilation[axis] * (sizes[axis] - 1) - 1
        if not sizes[axis] or paddings[axis] < 0 or rest // geometry.stride[axis] + 1 != outputs[axis]:
            return geometry
    return replace(geometry, size=(sizes[0], sizes[1]), padding=(paddings[0], paddings[1]))


def _taps_in_use(geometry: Geometry, axis: int, inputs: int, outputs: int) -> range:
    """From the first to the last tap that lies inside the image at some output."""
    stride, dilation, padding = geometry.stride[axis], geometry.dilation[axis], geometry.padding[axis]
    used = [
        tap
        for tap in range(geometry.size[axis])
        if any(0 <= tap * dilation - padding + output * stride < inputs for output in range(outputs))
    ]
    return range(used[0], used[-1] + 1) if used else range(0)


def image(x: Tensor) -> Tensor:
    """(batch, channels, height, width) of (batch, channels, width) or of an image."""
    return x.unsqueeze(2) if x.dim() == 3 else x


def plane(layer: nn.Conv1d | nn.Conv2d, a: Tensor) -> tuple[Tensor, Geometry]:
    """The input as images, padded here where zeros of equal size on both sides cannot say it, and the geometry."""
    geometry, sides = _geometry(
        layer.in_channels,
        layer.out_channels,
        layer.kernel_size,
        layer.stride,
        layer.padding,
        layer.dilation,
        layer.groups,
        layer.padding_mode,
    )
    if sides:
        a = F.pad(a, sides, mode="constant" if layer.padding_mode == "zeros" else layer.padding_mode)
    return image(a), geometry


@lru_cache(maxsize=256)
def _geometry(
    inputs: int,
    outputs: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...] | str,
    dilation: tuple[int, ...],
    groups: int,
    mode: str,
) -> tuple[Geometry, tuple[int, ...]]:
    """The geometry, and what is to be padded before and after, last axis first, where it does not say that."""
    sides = _sides(size, padding, dilation)
    said = mode == "zeros" and sides[::2] == sides[1::2]
    geometry = Geometry(
        out=outputs,
        width=inputs // groups,
        size=_pair(size, 1),
        stride=_pair(stride, 1),
        padding=_pair(sides[::2][::-1], 0) if said else (0, 0),
        dilation=_pair(dilation, 1),
        groups=groups,
    )
    return geometry, () if said else sides


def _pair(values: tuple[int, ...], height: int) -> tuple[int, int]:
    return (values[0], values[1]) if len(values) == 2 else (height, values[0])


def _sides(size: tuple[int, ...], padding: tuple[int, ...] | str, dilation: tuple[int, ...]) -> tuple[int, ...]:
    """Padding before and after, last axis first, as F.pad takes it."""
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, size, strict=True)]
        return tuple(side for total in reversed(totals) for side in (total // 2, total - total // 2))
    if isinstance(padding, str):
        return (0,) * (2 * len(size))
    return tuple(side for p in reversed(padding) for side in (p, p))
