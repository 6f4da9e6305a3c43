"""nᵢ = ‖Mᵢ‖² from the kernel gradients Mᵢ = ∂ℓᵢ/∂W, by convolutions in which each image is a group of its own.

∂n/∂G = 2·conv(a, Mᵢ) and ∂n/∂a is 2 times the transposed convolution of G with Mᵢ. Nothing is laid out anew and nothing
kept, which suits a CPU.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from .convolve import convolution_gradients, convolve
from .geometry import Geometry
from .kernel_contraction import Kept, KernelContraction, Size


class Grouped(KernelContraction):
    """By convolutions; the cost is counted in multiplications."""

    # 4 MiB in float32, which caches hold.
    chunk = 2**20

    def cost(self, inputs: Size, outputs: Size, geometry: Geometry) -> int:
        """Those of Mᵢ."""
        return outputs[0] * outputs[1] * geometry.patch * geometry.out

    def numbers(self, inputs: Size, outputs: Size, geometry: Geometry) -> int:
        """Those in Mᵢ."""
        return geometry.out * geometry.patch

    def norms(self, a: Tensor, g: Tensor, geometry: Geometry, *, wants_a: bool, wants_g: bool) -> tuple[Tensor, Kept]:
        """Nothing is kept."""
        # The norm needs no tensor of squares.
        lengths: Tensor = torch.linalg.vector_norm(_kernel_gradients(a, g, geometry).reshape(len(a), -1), dim=1)
        return lengths.square(), ()

    def pullbacks(
        self, a: Tensor, g: Tensor, kept: Kept, twice: Tensor, geometry: Geometry, *, wants_a: bool
    ) -> tuple[Tensor | None, Tensor]:
        """With Mᵢ computed again."""
        kernels = _kernel_gradients(a, g, geometry)
        kernels *= twice.repeat_interleave(geometry.out).view(-1, 1, 1, 1)
        apart = replace(geometry, groups=len(a))
        for_g = convolve(_joined(a), kernels, apart).reshape(g.shape)
        if not wants_a:
            return None, for_g
        for_a, _ = convolution_gradients(_joined(g), _joined(a), kernels, apart, at_a=True, at_kernel=False)
        return cast(Tensor, for_a).reshape(a.shape), for_g


def _kernel_gradients(a: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
    """Mᵢ, shape (n·out, in, *size)."""
    # Only the shape of the kernels matters here, so they take no memory.
    kernels = a.new_empty(()).expand(len(a) * geometry.out, geometry.width, *geometry.size)
    apart = replace(geometry, groups=len(a))
    _, found = convolution_gradients(_joined(g), _joined(a), kernels, apart, at_a=False, at_kernel=True)
    return cast(Tensor, found)


def _joined(x: Tensor) -> Tensor:
    """One image with the channels of all."""
    return x.reshape(1, -1, *x.shape[2:])
