"""What a way to contract a convolution's inputs and output gradients to nᵢ = ‖∂ℓᵢ/∂W‖² must say about itself.

Images a (n, channels, height, width) and G (n, out, ...) are those of one group of one example each, so n counts groups
as well, and the geometry given has a single group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from .geometry import Geometry

Kept = tuple[Tensor, ...]
Size = tuple[int, int]


class KernelContraction(ABC):
    """One way to find nᵢ and its derivatives."""

    # How many numbers may exist at one time beside the result.
    chunk: int
    # Whether steps are so small that layers of equal shapes are better taken together.
    together = False

    @abstractmethod
    def cost(self, inputs: Size, outputs: Size, geometry: Geometry) -> int:
        """What an image takes, comparable between the ways that suit a device."""

    @abstractmethod
    def numbers(self, inputs: Size, outputs: Size, geometry: Geometry) -> int:
        """How many numbers an image needs beside the result."""

    @abstractmethod
    def norms(self, a: Tensor, g: Tensor, geometry: Geometry, *, wants_a: bool, wants_g: bool) -> tuple[Tensor, Kept]:
        """nᵢ, shape (n,), and what the pullbacks with respect to a and g, where they are wanted, are to be given."""

    @abstractmethod
    def pullbacks(
        self, a: Tensor, g: Tensor, kept: Kept, twice: Tensor, geometry: Geometry, *, wants_a: bool
    ) -> tuple[Tensor | None, Tensor]:
        """½ Σᵢ twiceᵢ nᵢ differentiated with respect to a, where wanted, and g; `twice` has shape (n,)."""
