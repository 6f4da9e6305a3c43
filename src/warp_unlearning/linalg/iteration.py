"""Rounds of subspace iteration towards the leading eigenvectors of a second moment C (d, d)."""

from __future__ import annotations

import torch
from torch import Tensor

from .orthonormal import orthonormal

# From this many columns on, those with an eigenvalue of less than so many times the smallest take so many turns.
_MANY = 512
_SMALL = 4.0
_TURNS = 4
_SHIFTS = 5


class Span:
    """An orthonormal `basis` (d, k) under subspace iteration, with the eigenvalues of its columns where they are known,
    as shares of their sum over all d.

    A round turns a direction the less, and gains the less by it, the closer its eigenvalue is to those left out. So of
    many columns, those within a factor of four of the smallest take turns: a quarter of them is multiplied in each
    round, the others are only kept orthogonal to the rest.
    """

    def __init__(self, basis: Tensor, shares: Tensor | None = None) -> None:
        self.basis = basis
        self._sizes = shares
        self._turn = 0

    def iterate(self, second_moment: Tensor, *, rounds: int) -> None:
        """`rounds` of B ← orth(C B). Directions that C maps to zero stay."""
        basis, total = self.basis.to(second_moment), second_moment.diagonal().sum()
        for _ in range(rounds):
            chosen = self._chosen(basis)
            # Rows of B as rows in memory: the product is a quarter faster than with the columns of B as columns.
            rows = basis.mT.contiguous()
            before = rows[chosen]
            image = before @ second_moment
            size = image.norm(dim=1)
            image = torch.where((size > 0).unsqueeze(1), image, before)
            known = size.new_zeros(len(rows)) if self._sizes is None else self._sizes.to(size)
            self._sizes = known.index_put((chosen,), size / total)
            basis = orthonormal(rows.index_put((chosen,), image).mT)
        self.basis = basis

    def _chosen(self, basis: Tensor) -> Tensor:
        """The columns that this round multiplies."""
        every = torch.arange(basis.shape[1], device=basis.device)
        if self._sizes is None or len(every) < _MANY:
            return every
        small = self._sizes.to(basis.device) <= _SMALL * self._sizes.min()
        self._turn += 1
        return torch.cat([every[~small], every[small][self._turn % _TURNS :: _TURNS]])


def iterate_inverse(second_moment: Tensor, normals: Tensor, *, rounds: int) -> Tensor | None:
    """`rounds` of Z ← orth((C + μI)⁻¹ Z), from an orthonormal `normals` (d, m): subspace iteration by the complement.

    μ starts at the rounding error of C, and grows where C is not positive definite without more; it leaves the
    eigenvectors as they are. None where no μ below a thousandth of the energy makes it so.
    """
    total = float(second_moment.diagonal().sum())
    shifted = second_moment.clone()
    for power in range(_SHIFTS):
        shift = torch.finfo(second_moment.dtype).eps * total * 8**power
        torch.diagonal(shifted).copy_(second_moment.diagonal() + shift)
        factor, failed = torch.linalg.cholesky_ex(shifted)
        if not bool(failed):
            for _ in range(rounds):
                normals = orthonormal(torch.cholesky_solve(normals, factor))
            return normals
    return None
