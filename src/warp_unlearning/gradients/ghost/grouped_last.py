"""nᵢ = ‖Mᵢ‖² as in `grouped`, on images whose channels run fastest.

The images are laid side by side, (height, width, n·channels), where a GPU convolves groups almost as fast as it does
without groups. Both derivatives are linear in what comes from upstream, so they are found with the norm, while a GPU
would wait for the next layer's, and kept up to that factor.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from .convolve import convolution_gradients, convolve
from .geometry import Geometry, in_groups
from .kernel_contraction import Kept, KernelContraction, Size
from .rows import side_by_side


class GroupedLast(KernelContraction):
    """By convolutions; the cost is counted in numbers moved through memory."""

    # 1 GiB in float32.
    chunk = 2**28
    together = True

    def cost(self, inputs: Size, outputs: Size, geometry: Geometry) -> int:
        """The images laid out anew, read, and derivatives of their size, and Mᵢ for three convolutions and a norm."""
        images = inputs[0] * inputs[1] * geometry.width + outputs[0] * outputs[1] * geometry.out
        return 4 * images + 4 * geometry.out * geometry.patch

    def numbers(self, inputs: Size, outputs: Size, geometry: Geometry) -> int:
        """Those in Mᵢ and in the images."""
        images = inputs[0] * inputs[1] * geometry.width + outputs[0] * outputs[1] * geometry.out
        return geometry.out * geometry.patch + images

    def norms(self, a: Tensor, g: Tensor, geometry: Geometry, *, wants_a: bool, wants_g: bool) -> tuple[Tensor, Kept]:
        """The halves of the derivatives at G and, where wanted, a are kept."""
        count = a.shape[0]
        apart, images, gradients = in_groups(geometry, count), side_by_side(a), side_by_side(g)
        shape = (count * geometry.out, geometry.width, *geometry.size)
        # Its shape and layout alone matter.
        like = torch.empty(shape, dtype=a.dtype, device=a.device, memory_format=torch.channels_last)
        _, found = convolution_gradients(gradients, images, like, apart, at_a=False, at_kernel=True)
        kernels = cast(Tensor, found)
        # The norm needs no tensor of squares; in memory the channels run fastest.
        lengths: Tensor = torch.linalg.vector_norm(kernels.permute(0, 2, 3, 1).reshape(count, -1), dim=1)
        if not wants_g:
            return lengths.square(), ()
        for_g = convolve(images, kernels, apart)
        if not wants_a:
            return lengths.square(), (for_g,)
        for_a, _ = convolution_gradients(gradients, images, kernels, apart, at_a=True, at_kernel=False)
        return lengths.square(), (for_g, cast(Tensor, for_a))

    def pullbacks(
        self, a: Tensor, g: Tensor, kept: Kept, twice: Tensor, geometry: Geometry, *, wants_a: bool
    ) -> tuple[Tensor | None, Tensor]:
        """The halves times 2 and what comes from upstream."""
        twice = twice.view(-1, 1, 1, 1)
        # Into the layout of a and g, which what comes from elsewhere has too.
        for_g = torch.mul(kept[0].reshape(g.shape), twice, out=torch.empty_like(g))
        for_a = torch.mul(kept[1].reshape(a.shape), twice, out=torch.empty_like(a)) if wants_a else None
        return for_a, for_g
