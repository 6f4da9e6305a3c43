"""nᵢ = ‖∂ℓᵢ/∂W‖² + ‖∂ℓᵢ/∂b‖² of a linear layer that sees one row of each example: ‖g‖²(‖a‖² + 1).

Without the bias the 1 is left out, and without the weight ‖a‖². ∂n/∂a = 2‖g‖²a and ∂n/∂G = 2(‖a‖² + 1)G.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .summand import Entry, Summand


def one_row_entry(a: Tensor, g: Tensor, *, weight: bool, bias: bool) -> Entry:
    """nᵢ, shape (n,), as a summand of rows a (n, d) and g (n, o)."""
    return _OneRowNorm(weight=weight, bias=bias), (a, g)


class _OneRowNorm(Summand):
    def __init__(self, *, weight: bool, bias: bool) -> None:
        self._weight, self._bias = weight, bias

    def norms(self, tensors: Sequence[Tensor], wanted: Sequence[bool]) -> tuple[Tensor, Sequence[Tensor]]:
        """The two factors are kept, shape (n, 1)."""
        a, g = tensors
        of_g = _squared_length(g)
        of_a = _squared_length(a) if self._weight else torch.zeros_like(of_g)
        if self._bias:
            of_a += 1
        return (of_a * of_g).flatten(), (of_a, of_g)

    def pullbacks(
        self, tensors: Sequence[Tensor], kept: Sequence[Tensor], wanted: Sequence[bool], twice: Tensor
    ) -> Sequence[Tensor | None]:
        """Each is a multiple of what it belongs to."""
        (a, g), (of_a, of_g), factor = tensors, kept, twice[:, None]
        return a * (of_g * factor) if wanted[0] and self._weight else None, g * (of_a * factor)


def _squared_length(rows: Tensor) -> Tensor:
    """Shape (n, 1)."""
    length: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return length.square_()
