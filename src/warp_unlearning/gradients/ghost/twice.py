"""A convolution o = a * W whose second derivative costs what its first does.

The gradient at a, b = G *ᵀ W, is linear in G and in W, so for a cotangent u of b: ∂/∂G = u * W, and ∂/∂W is the kernel
gradient of a convolution with input u and output gradient G. Autograd's own second derivative finds the latter by a
convolution with kernels as large as the image.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from .applied import applied
from .convolve import convolution_gradients, convolve
from .geometry import Geometry
from .once import differentiable_once
from .rule import Passing

# Given whether it is worth some steps.
LaidOut = Callable[[bool], Tensor | None]


def convolved(
    a: Tensor, weight: Tensor, geometry: Geometry, passing: Passing, laid_out: LaidOut = lambda worth: None
) -> Tensor:
    """Images (batch, channels, height, width) convolved; while `passing.outputs_only`, W is given no gradient.

    `laid_out` gives W as a constant with channels running fastest, if it is known.
    """
    return cast(Tensor, applied(_Convolution, a, weight, geometry, passing, laid_out))


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, weight: Tensor, geometry: Geometry, passing: Passing, laid_out: LaidOut) -> Tensor:
        ctx.save_for_backward(a, weight)
        ctx.kernel = _laid_out_like(a, weight, laid_out)
        ctx.geometry, ctx.passing = geometry, passing
        return convolve(a, ctx.kernel, geometry)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        a, weight = ctx.saved_tensors
        if ctx.passing.outputs_only:
            if not ctx.needs_input_grad[0]:
                return None, None, None, None, None
            found = applied(_InputGradient, g, weight, _Constants(ctx.kernel, a, ctx.geometry))
            return found, None, None, None, None
        at_a, at_kernel = ctx.needs_input_grad[:2]
        found = convolution_gradients(g, a, ctx.kernel, ctx.geometry, at_a=at_a, at_kernel=at_kernel)
        return *found, None, None, None


class _Constants(NamedTuple):
    """W and a, of which the shape and layout alone matter; as parts of this, autograd takes no notice of them."""

    kernel: Tensor
    a: Tensor
    geometry: Geometry


class _InputGradient(torch.autograd.Function):
    """b."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, weight: Tensor, constants: _Constants) -> Tensor:
        # W is kept for its version alone, which tells whether it has been written over.
        ctx.save_for_backward(g, weight)
        ctx.kernel, ctx.geometry = constants.kernel, constants.geometry
        found, _ = convolution_gradients(
            g, constants.a, constants.kernel, constants.geometry, at_a=True, at_kernel=False
        )
        return cast(Tensor, found)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor, Tensor | None, None]:
        g, _ = ctx.saved_tensors
        for_weight = None
        if ctx.needs_input_grad[1]:
            _, for_weight = convolution_gradients(g, u, ctx.kernel, ctx.geometry, at_a=False, at_kernel=True)
        return convolve(u, ctx.kernel, ctx.geometry), for_weight, None


def _laid_out_like(a: Tensor, weight: Tensor, laid_out: LaidOut) -> Tensor:
    """The kernel with channels running fastest where the input's do: once, instead of in every convolution.

    Images of one pixel have either layout; there the kernel's decides how libraries convolve.
    """
    if not a.is_contiguous(memory_format=torch.channels_last):
        return weight
    either = a.is_contiguous()
    found = laid_out(not either)
    if found is not None:
        return found
    return weight if either else weight.contiguous(memory_format=torch.channels_last)
