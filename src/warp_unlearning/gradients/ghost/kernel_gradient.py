"""The kernel gradient of every image, Mᵢ = Σₜ gₜpₜᵀ, differentiable once in the images and the output gradients.

The images are laid side by side, as in `grouped_last`, where one convolution of groups gives all Mᵢ. For a cotangent U
of M the derivatives are convolutions again: ∂/∂G = a * U and ∂/∂a = G *ᵀ U, each image with its own kernel. A GPU has
fast convolutions of groups for a stride of 1 and channels in fours: outputs that a stride sets apart get zeros between
them, and missing channels are zeros.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from .convolve import convolution_gradients, convolve
from .geometry import Geometry
from .once import differentiable_once
from .rows import side_by_side, windows_along


def kernel_gradients(a: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
    """Mᵢ, shape (batch, out, channels / groups, *size), of images a (batch, channels, height, width) and g."""
    batch, groups = a.shape[0], geometry.groups
    if groups > 1:
        a, g = (x.reshape(batch * groups, -1, *x.shape[2:]) for x in (a, g))
        geometry = replace(geometry, out=geometry.out // groups, groups=1)
    if geometry.size == (1, 1) and geometry.padding == (0, 0):
        a = a[:, :, :: geometry.stride[0], :: geometry.stride[1]]
        found = torch.einsum("nohw,nchw->noc", g, a)[..., None, None]
    else:
        g = _with_zeros_between(a, g, geometry)
        missing = -a.shape[1] % 4
        padded = F.pad(a, (0, 0, 0, 0, 0, missing)) if missing else a
        kernels = cast(
            Tensor,
            _KernelGradient.apply(padded, g, replace(geometry, width=geometry.width + missing, stride=(1, 1))),  # type: ignore[no-untyped-call]
        )
        found = kernels[:, :, : a.shape[1]] if missing else kernels
    return found.reshape(batch, -1, *found.shape[2:])


def _with_zeros_between(a: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
    """The output gradient g as that of the same kernel at a stride of 1."""
    if geometry.stride == (1, 1):
        return g
    full = windows_along(
        (a.shape[2] + 2 * geometry.padding[0], a.shape[3] + 2 * geometry.padding[1]),
        geometry.size,
        stride=(1, 1),
        dilation=geometry.dilation,
    )
    (down, right), (tall, wide) = geometry.stride, g.shape[2:]
    apart = g.new_zeros(*g.shape[:2], *full)
    apart[:, :, : (tall - 1) * down + 1 : down, : (wide - 1) * right + 1 : right] = g
    return apart


class _KernelGradient(torch.autograd.Function):
    """For a single group and a stride of 1."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
        ctx.save_for_backward(a, g)
        ctx.geometry = geometry
        count = a.shape[0]
        shape = (count * geometry.out, geometry.width, *geometry.size)
        # Its shape and layout alone matter.
        like = torch.empty(shape, dtype=a.dtype, device=a.device, memory_format=torch.channels_last)
        apart = replace(geometry, groups=count)
        _, found = convolution_gradients(side_by_side(g), side_by_side(a), like, apart, at_a=False, at_kernel=True)
        return cast(Tensor, found).reshape(count, geometry.out, geometry.width, *geometry.size)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        a, g = ctx.saved_tensors
        apart = replace(ctx.geometry, groups=a.shape[0])
        kernels = u.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        images = side_by_side(a)
        for_a = for_g = None
        if ctx.needs_input_grad[1]:
            for_g = convolve(images, kernels, apart).reshape(g.shape)
        if ctx.needs_input_grad[0]:
            found, _ = convolution_gradients(side_by_side(g), images, kernels, apart, at_a=True, at_kernel=False)
            for_a = cast(Tensor, found).reshape(a.shape)
        return for_a, for_g, None
