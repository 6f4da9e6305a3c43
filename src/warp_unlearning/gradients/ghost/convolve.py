"""A convolution of images by its geometry, and the gradients at what enters it."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from .geometry import Geometry

# Looked up once: that takes as long as to begin it.
_convolution_backward = torch.ops.aten.convolution_backward.default


def convolve(a: Tensor, kernel: Tensor, geometry: Geometry) -> Tensor:
    """Images (batch, channels, height, width) convolved with a kernel (out, in / groups, *size)."""
    return F.conv2d(a, kernel, None, geometry.stride, geometry.padding, geometry.dilation, geometry.groups)


def transposed_convolve(g: Tensor, kernel: Tensor, shape: torch.Size, geometry: Geometry) -> Tensor:
    """The gradient at images of this shape where g is the one at the output, differentiable by torch's own rules."""
    # Windows at a stride of 1 reach everything.
    rest = (0, 0) if geometry.stride == (1, 1) else _beyond_the_last_window(shape, g.shape, geometry)
    return torch.convolution(
        g, kernel, None, geometry.stride, geometry.padding, geometry.dilation, True, rest, geometry.groups
    )


def _beyond_the_last_window(inputs: torch.Size, outputs: torch.Size, geometry: Geometry) -> list[int]:
    """Rows and columns of images of shape `inputs`."""
    size, stride, padding, dilation = geometry.size, geometry.stride, geometry.padding, geometry.dilation
    axes = zip(inputs[2:], outputs[2:], size, stride, padding, dilation, strict=True)
    return [length - ((count - 1) * s + d * (k - 1) + 1 - 2 * p) for length, count, k, s, p, d in axes]


def convolution_gradients(
    g: Tensor, a: Tensor, kernel: Tensor, geometry: Geometry, *, at_a: bool, at_kernel: bool
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients at a and at the kernel where g is the one at the output; of what is not asked for, None.

    Of a, only the shape and the memory format matter for its own gradient, and of the kernel only those for its own.
    """
    found = _convolution_backward(
        g,
        a,
        kernel,
        None,
        geometry.stride,
        geometry.padding,
        geometry.dilation,
        False,
        (0, 0),
        geometry.groups,
        (at_a, at_kernel, False),
    )
    return cast("tuple[Tensor | None, Tensor | None]", found[:2])
