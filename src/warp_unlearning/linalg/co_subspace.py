"""Subspaces of most dimensions, given by the few directions that are orthogonal to them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .subspace import Subspace, energy_share, last_in_one_column


@dataclass(frozen=True, eq=False)
class CoSubspace:
    """A subspace given by what is orthogonal to it: the cheaper form for one of more than half of the dimensions.

    `normals` is an orthonormal basis (d, m) of its complement within the coordinates marked in `alive`, bool (d); it
    has zeros in the others, which belong to neither.
    """

    normals: Tensor
    alive: Tensor
    captured: float
    # How many are alive, where that is known without looking.
    count: int | None = None

    @property
    def rank(self) -> int:
        """k, the number of directions."""
        return (int(self.alive.sum()) if self.count is None else self.count) - self.normals.shape[1]

    @property
    def basis(self) -> Tensor:
        """An orthonormal basis of the subspace itself, (d, k). It is computed at every call, at the cost of a QR."""
        basis = self.normals.new_zeros(len(self.alive), self.rank)
        basis[self.alive] = torch.linalg.qr(self.normals[self.alive], mode="complete").Q[:, self.normals.shape[1] :]
        return basis

    def project_out(self, rows: Tensor) -> Tensor:
        """Each row of shape (..., d) less its part in the subspace, and zero in coordinates that are not alive."""
        return (rows @ self.normals) @ self.normals.mT

    def missed(self, rows: Tensor) -> float:
        """The share of the energy of rows (n, d) that lies outside of the subspace."""
        return float(self.missed_share(rows))

    def missed_share(self, rows: Tensor) -> Tensor:
        """`missed` as a tensor, not read."""
        return energy_share(self.outside(rows), rows)

    def outside(self, rows: Tensor) -> Tensor:
        """Something that has the energy of rows (n, d) outside of the subspace."""
        outside = rows @ self.normals
        return outside if self.count == len(self.alive) else torch.cat([outside, rows * ~self.alive], dim=1)

    def without_last(self) -> CoSubspace:
        """What the subspace is in its first d − 1 coordinates: the span of its vectors with the last one left out."""
        turned = last_in_one_column(self.normals)
        kept = turned[:-1, 1:] if bool(turned[-1].any()) else turned[:-1]
        return CoSubspace(kept, self.alive[:-1], self.captured)

    def narrowed(self, columns: Tensor) -> CoSubspace:
        """The same subspace in some of its coordinates, int64 indices, where none of the others is alive."""
        return CoSubspace(
            self.normals.index_select(0, columns), self.alive.index_select(0, columns), self.captured, self.count
        )

    def within(self, columns: Tensor, d: int) -> CoSubspace:
        """The same subspace where its coordinates are some, int64 indices, of d; the others are not alive."""
        normals = self.normals.new_zeros(d, self.normals.shape[1]).index_copy_(0, columns, self.normals)
        return CoSubspace(
            normals, self.alive.new_zeros(d).index_copy_(0, columns, self.alive), self.captured, self.count
        )

    def to(self, dtype: torch.dtype) -> CoSubspace:
        """The same subspace in another floating-point type."""
        return CoSubspace(self.normals.to(dtype), self.alive, self.captured, self.count)


AnySubspace = Subspace | CoSubspace
