"""Convolutions of maps of one pixel as products of matrices, with the one tap of a kernel that sees the pixel.

In float32 without rounding to TF32 cuDNN multiplies all taps, and copies images and kernels to another layout before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .one_pixel_norm import AsVectors, of_one_pixel

Pair = tuple[int, int]
_CONVOLUTIONS = (F.conv2d, torch.conv2d)


class VectorLayers(AsVectors):
    """Batch norms as `AsVectors` has them, and convolutions of maps of one pixel as `convolved_vectors`, where those
    give maps of one pixel again; what is differentiated is left as it is.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """`func` of what it was called with, or of vectors."""
        if func in _CONVOLUTIONS and args and not torch.is_grad_enabled() and self.suits(args[0]):
            found = convolved_vectors(*args, **(kwargs or {}))
            if found is not None:
                return found
        return super().__torch_function__(func, types, args, kwargs)


def convolved_vectors(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor | None:
    """`conv2d` of maps of one pixel (n, c, 1, 1) to maps of one pixel, by the tap that sees it; None where there is no
    such tap, or where outputs are more.
    """
    if isinstance(padding, str) or groups != 1 or weight.dtype != x.dtype or x.dim() != 4 or not of_one_pixel(x):
        return None
    taps = [
        _only_tap(size, step, around, apart)
        for size, step, around, apart in zip(
            weight.shape[2:], _pair(stride), _pair(padding), _pair(dilation), strict=True
        )
    ]
    if taps[0] is None or taps[1] is None:
        return None
    return F.linear(x.flatten(1), weight[:, :, taps[0], taps[1]], bias)[:, :, None, None]


def _only_tap(size: int, stride: int, padding: int, dilation: int) -> int | None:
    """The tap that sees the pixel from the only output along an axis."""
    outputs = (2 * padding - dilation * (size - 1)) // stride + 1
    tap, between = divmod(padding, dilation)
    return tap if outputs == 1 and not between and tap < size else None


def _pair(given: int | Sequence[int]) -> Pair:
    if isinstance(given, int):
        return given, given
    first, *others = given
    return first, (others or [first])[0]
