"""A Conv1d or Conv2d as a two-dimensional convolution with zero padding of equal size on both sides."""

from __future__ import annotations

from dataclasses import dataclass

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

    @property
    def patch(self) -> int:
        """Elements of a patch that one group sees."""
        return self.width * self.size[0] * self.size[1]


def image(x: Tensor) -> Tensor:
    """(batch, channels, height, width) of (batch, channels, width) or of an image."""
    return x.unsqueeze(2) if x.dim() == 3 else x


def plane(layer: nn.Conv1d | nn.Conv2d, a: Tensor) -> tuple[Tensor, Geometry]:
    """The input as images, padded here where zeros of equal size on both sides cannot say it, and the geometry."""
    size = _pair(layer.kernel_size, 1)
    dilation = _pair(layer.dilation, 1)
    padding = (0, 0)
    before_and_after = _sides(layer)
    if layer.padding_mode != "zeros":
        a = F.pad(a, before_and_after, mode=layer.padding_mode)
    elif any(before_and_after[k] != before_and_after[k + 1] for k in range(0, len(before_and_after), 2)):
        a = F.pad(a, before_and_after)
    else:
        padding = _pair(tuple(reversed(before_and_after[::2])), 0)
    geometry = Geometry(
        out=layer.out_channels,
        width=layer.in_channels // layer.groups,
        size=size,
        stride=_pair(layer.stride, 1),
        padding=padding,
        dilation=dilation,
        groups=layer.groups,
    )
    return image(a), geometry


def _pair(values: tuple[int, ...], height: int) -> tuple[int, int]:
    return (values[0], values[1]) if len(values) == 2 else (height, values[0])


def _sides(layer: nn.Conv1d | nn.Conv2d) -> list[int]:
    """Padding before and after, last axis first, as F.pad takes it."""
    if layer.padding == "same":
        totals = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        return [side for total in reversed(totals) for side in (total // 2, total - total // 2)]
    if isinstance(layer.padding, str):
        return [0] * (2 * len(layer.kernel_size))
    return [side for p in reversed(layer.padding) for side in (p, p)]
