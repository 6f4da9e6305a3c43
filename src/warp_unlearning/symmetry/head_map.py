"""Heads of an attention layer mixed: a block-diagonal matrix along one axis of a tensor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class HeadMap:
    """Runs of d entries along `axis`, from entry `start` on, each through a matrix of its own.

    `matrices` A has shape (heads, d, d): entry i of head h becomes Σⱼ A[h, i, j] · entry j of head h; what lies before
    and after the heads stays. Rows W of a head become A W; columns W, which are axis 1, become W Aᵀ. Computed in
    float64 and rounded once to the precision of the tensor.
    """

    axis: int
    matrices: Tensor
    start: int = 0

    def apply(self, value: Tensor) -> Tensor:
        """The tensor with its heads mixed."""
        return self._mix(value, self.matrices)

    def apply_inverse_transpose(self, value: Tensor) -> Tensor:
        """The map that gradients follow: A⁻ᵀ for every A."""
        return self._mix(value, torch.linalg.inv(self.matrices).mT)

    def reorder(self, value: Tensor) -> Tensor:
        """Labels stay where they are: after a general matrix every entry of a head is a mixture of all of them."""
        return value

    def inverse(self) -> HeadMap:
        """The map back."""
        return HeadMap(self.axis, torch.linalg.inv(self.matrices), self.start)

    def _mix(self, value: Tensor, matrices: Tensor) -> Tensor:
        heads, width, _ = matrices.shape
        end = self.start + heads * width
        before, part, after = value.tensor_split((self.start, end), dim=self.axis)
        moved = part.movedim(self.axis, 0)
        blocks = moved.reshape(heads, width, -1).to(torch.float64)
        mixed = (matrices.to(device=value.device) @ blocks).to(value.dtype).reshape(moved.shape)
        return torch.cat((before, mixed.movedim(0, self.axis), after), dim=self.axis)
