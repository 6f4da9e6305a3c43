"""⟨Mᵢ, Tᵢ⟩ for the kernel gradient Mᵢ of every image and a direction Tᵢ of its own, without Mᵢ.

With a * T the image convolved with its direction, ⟨Σₜ gₜpₜᵀ, T⟩ = Σₜ gₜ·(a * T)ₜ: one convolution of groups, and none
for the derivative at G. For a stride above 1 the convolution is made at a stride of 1, where a GPU is fast, and outputs
are left out; missing channels are zeros.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from .convolve import convolve
from .geometry import Geometry
from .rows import side_by_side


def kernel_alignments(a: Tensor, g: Tensor, directions: Tensor, geometry: Geometry) -> Tensor:
    """Shape (batch,), of images a (batch, channels, height, width), g and T (batch, out, channels / groups, *size)."""
    batch, groups = a.shape[0], geometry.groups
    if groups > 1:
        a, g = (x.reshape(batch * groups, -1, *x.shape[2:]) for x in (a, g))
        directions = directions.reshape(batch * groups, -1, *directions.shape[2:])
        geometry = replace(geometry, out=geometry.out // groups, groups=1)
    along = _convolved(a, directions, geometry)
    return (g * along).reshape(batch, -1).sum(1)


def _convolved(a: Tensor, directions: Tensor, geometry: Geometry) -> Tensor:
    """Each image with its own kernel, shape of the output gradients."""
    if geometry.size == (1, 1) and geometry.padding == (0, 0):
        a = a[:, :, :: geometry.stride[0], :: geometry.stride[1]]
        return torch.einsum("noc,nchw->nohw", directions[..., 0, 0], a)
    missing = -a.shape[1] % 4
    if missing:
        a, directions = F.pad(a, (0, 0, 0, 0, 0, missing)), F.pad(directions, (0, 0, 0, 0, 0, missing))
    count, kernels = a.shape[0], directions.flatten(0, 1).contiguous(memory_format=torch.channels_last)
    found = convolve(side_by_side(a), kernels, replace(geometry, groups=count, stride=(1, 1)))
    found = found.reshape(count, -1, *found.shape[2:])
    return found[:, :, :: geometry.stride[0], :: geometry.stride[1]]
