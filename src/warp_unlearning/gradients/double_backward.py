"""A convolution o = a * W whose second derivative costs what its first does.

The gradient at a, b = G *ᵀ W, is linear in G and in W, so for a cotangent u of b: ∂/∂G = u * W, and ∂/∂W is the kernel
gradient of a convolution with input u and output gradient G. Autograd's own second derivative finds the latter by a
convolution with kernels as large as the image. The rule of convolutions (`rules_conv`) computes by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from ..modules import strictly_channels_last
from .rules import Phase

Pair = tuple[int, int]


@dataclass(frozen=True)
class Geometry:
    """How a kernel (out, width, *size), width being the channels of a group, lies on an image; pairs: height, width."""

    out: int
    width: int
    size: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int


def convolve(a: Tensor, kernel: Tensor, geometry: Geometry) -> Tensor:
    """Images (batch, channels, height, width) convolved with a kernel (out, width, *size)."""
    return F.conv2d(a, kernel, None, geometry.stride, geometry.padding, geometry.dilation, geometry.groups)


def input_gradient(g: Tensor, like: Tensor, kernel: Tensor, geometry: Geometry) -> Tensor:
    """The gradient at images of the shape and layout of `like`, for a gradient g at the output."""
    return cast(Tensor, _gradients(g, like, kernel, geometry, (True, False, False))[0])


def kernel_gradient(g: Tensor, a: Tensor, like: Tensor, geometry: Geometry) -> Tensor:
    """The gradient at a kernel of the shape and layout of `like`."""
    return cast(Tensor, _gradients(g, a, like, geometry, (False, True, False))[1])


def _gradients(g: Tensor, a: Tensor, kernel: Tensor, geometry: Geometry, wanted: tuple[bool, bool, bool]) -> Any:
    """The gradients at the images, the kernel and the bias, those of them that are `wanted`, for g at the output."""
    geometry_args = geometry.stride, geometry.padding, geometry.dilation, False, (0, 0), geometry.groups
    return torch.ops.aten.convolution_backward(g, a, kernel, None, *geometry_args, wanted)


def convolved(a: Tensor, weight: Tensor, geometry: Geometry, phase: Phase) -> Tensor:
    """Images convolved; while `phase.outputs_only`, the weight is given no gradient."""
    return cast(Tensor, _Convolution.apply(a, weight, geometry, phase))  # type: ignore[no-untyped-call]


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, weight: Tensor, geometry: Geometry, phase: Phase) -> Tensor:
        """Compute o = a * W, with a gradient at the images that can be differentiated cheaply."""
        ctx.save_for_backward(a, weight)
        ctx.geometry, ctx.phase = geometry, phase
        return convolve(a, _laid_out_like(a, weight), geometry)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        """The gradients at a and W; at a alone, and differentiable once more, while `phase.outputs_only`."""
        a, weight = ctx.saved_tensors
        if ctx.phase.outputs_only:
            at_a = _InputGradient.apply(g, a, weight, ctx.geometry) if ctx.needs_input_grad[0] else None  # type: ignore[no-untyped-call]
            return at_a, None, None, None
        wanted = (*ctx.needs_input_grad[:2], False)
        at_a, at_kernel, _ = _gradients(g, a, _laid_out_like(a, weight), ctx.geometry, wanted)
        return at_a, at_kernel, None, None


class _InputGradient(torch.autograd.Function):
    """b as a function of G and W that can be differentiated once more; only the shape and layout of a matter."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, a: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        """The gradient at images laid out as a, for a gradient g at the convolution's output."""
        ctx.save_for_backward(g, weight)
        ctx.geometry = geometry
        return input_gradient(g, a, _laid_out_like(a, weight), geometry)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, None, Tensor | None, None]:
        """For a cotangent u of `forward`: at g, u convolved; at W, the kernel gradient with input u."""
        g, weight = ctx.saved_tensors
        kernel = _laid_out_like(u, weight)
        at_g = convolve(u, kernel, ctx.geometry) if ctx.needs_input_grad[0] else None
        at_kernel = kernel_gradient(g, u, kernel, ctx.geometry) if ctx.needs_input_grad[2] else None
        return at_g, None, at_kernel, None


def _laid_out_like(a: Tensor, weight: Tensor) -> Tensor:
    """The kernel with channels running fastest where the input's do, so that no library copies it in every call."""
    return weight.contiguous(memory_format=torch.channels_last) if strictly_channels_last(a) else weight
