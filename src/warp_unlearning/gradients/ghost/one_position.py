"""nᵢ = ‖pᵢ‖²‖gᵢ‖² where the kernel has a single position: ∂ℓ/∂W = g pᵀ, and the patch p is the whole image.

∂n/∂a = 2‖g‖²a and ∂n/∂G = 2‖a‖²G.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .geometry import Geometry
from .kernel_contraction import Kept, KernelContraction, Size


class OnePosition(KernelContraction):
    """By the lengths of the image and of the output gradient."""

    # 1 GiB in float32.
    chunk = 2**28
    together = True

    def suits(self, inputs: Size, outputs: Size, geometry: Geometry) -> bool:
        """Whether the patch is the image."""
        filled = inputs == geometry.size and geometry.padding == (0, 0)
        return filled and outputs == (1, 1) and geometry.dilation == (1, 1)

    def cost(self, inputs: Size, outputs: Size, geometry: Geometry) -> int:
        """The numbers of both, read."""
        return geometry.patch + geometry.out

    def numbers(self, inputs: Size, outputs: Size, geometry: Geometry) -> int:
        """Two lengths."""
        return 2

    def norms(self, a: Tensor, g: Tensor, geometry: Geometry, *, wants_a: bool, wants_g: bool) -> tuple[Tensor, Kept]:
        """‖a‖² and ‖g‖² are kept."""
        of_a, of_g = (torch.linalg.vector_norm(x, dim=(1, 2, 3), keepdim=True).square_() for x in (a, g))
        return (of_a * of_g).flatten(), (of_a, of_g)

    def pullbacks(
        self, a: Tensor, g: Tensor, kept: Kept, twice: Tensor, geometry: Geometry, *, wants_a: bool
    ) -> tuple[Tensor | None, Tensor]:
        """Each is a multiple of what it belongs to."""
        of_a, of_g = kept
        twice = twice.view(-1, 1, 1, 1)
        return a * (of_g * twice) if wants_a else None, g * (of_a * twice)
