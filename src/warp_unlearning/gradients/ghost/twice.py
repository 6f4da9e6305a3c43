"""A convolution o = a * W whose second derivative costs what its first does.

The gradient at a, b = G *ᵀ W, is linear in G and in W, so for a cotangent u of b: ∂/∂G = u * W, and ∂/∂W is the kernel
gradient of a convolution with input u and output gradient G. Autograd's own second derivative finds the latter by a
convolution with kernels as large as the image.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .geometry import Geometry
from .rule import Passing


def convolved(a: Tensor, weight: Tensor, geometry: Geometry, passing: Passing) -> Tensor:
    """Images (batch, channels, height, width) convolved; while `passing.outputs_only`, W is given no gradient."""
    return cast(Tensor, _Convolution.apply(a, weight, geometry, passing))  # type: ignore[no-untyped-call]


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, weight: Tensor, geometry: Geometry, passing: Passing) -> Tensor:
        ctx.save_for_backward(a, weight)
        ctx.geometry, ctx.passing = geometry, passing
        return _forward(a, weight, geometry)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        a, weight = ctx.saved_tensors
        if ctx.passing.outputs_only:
            if not ctx.needs_input_grad[0]:
                return None, None, None, None
            return _InputGradient.apply(g, weight, a.shape, ctx.geometry), None, None, None  # type: ignore[no-untyped-call]
        wanted = (ctx.needs_input_grad[0], ctx.needs_input_grad[1])
        return *_gradients(g, a, weight, ctx.geometry, wanted), None, None


class _InputGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, weight: Tensor, shape: torch.Size, geometry: Geometry) -> Tensor:
        ctx.save_for_backward(g, weight)
        ctx.geometry = geometry
        # Only the shape of the input matters here, so it takes no memory.
        found, _ = _gradients(g, g.new_empty(()).expand(shape), weight, geometry, (True, False))
        return cast(Tensor, found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        g, weight = ctx.saved_tensors
        for_weight = None
        if ctx.needs_input_grad[1]:
            _, for_weight = _gradients(g, u, weight, ctx.geometry, (False, True))
        return _forward(u, weight, ctx.geometry), for_weight, None, None


def _forward(a: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    return F.conv2d(
        a,
        weight,
        stride=geometry.stride,
        padding=geometry.padding,
        dilation=geometry.dilation,
        groups=geometry.groups,
    )


def _gradients(
    g: Tensor, a: Tensor, weight: Tensor, geometry: Geometry, wanted: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients at a and W of a convolution with gradient g at its output."""
    found = torch.ops.aten.convolution_backward(
        g,
        a,
        weight,
        None,
        geometry.stride,
        geometry.padding,
        geometry.dilation,
        False,
        (0, 0),
        geometry.groups,
        (*wanted, False),
    )
    return cast("tuple[Tensor | None, Tensor | None]", found[:2])
