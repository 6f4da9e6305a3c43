"""The directions that hold most of a second moment, and projections onto their complement.

A second moment C = Σ p pᵀ, shape (d, d), has the squared singular values of the matrix of columns p as its eigenvalues.
Projections are two thin products; a d×d projector is never formed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..errors import InputError
from .gram import gram
from .orthonormal import orthonormal

Rule = Literal["energy", "singular_values"]


@dataclass(frozen=True, eq=False)
class Subspace:
    """An orthonormal `basis` of shape (d, k), and the share of the energy (squared singular values) it captures."""

    basis: Tensor
    captured: float

    @property
    def rank(self) -> int:
        """k, the number of directions."""
        return self.basis.shape[1]

    def project_out(self, rows: Tensor) -> Tensor:
        """Each row of shape (..., d) less its part in the subspace."""
        return project_out(rows, self.basis)

    def missed(self, rows: Tensor) -> float:
        """The share of the energy of rows (n, d) that lies outside of the subspace."""
        return float(self.missed_share(rows))

    def missed_share(self, rows: Tensor) -> Tensor:
        """`missed` as a tensor, not read."""
        return energy_share(self.outside(rows), rows)

    def outside(self, rows: Tensor) -> Tensor:
        """Something that has the energy of rows (n, d) outside of the subspace."""
        return self.project_out(rows)

    def without_last(self) -> Subspace:
        """What the subspace is in its first d − 1 coordinates: the span of its vectors with the last one left out."""
        turned = last_in_one_column(self.basis)
        return Subspace(_unit_columns(turned[:-1]), self.captured)

    def narrowed(self, columns: Tensor) -> Subspace:
        """The same subspace in some of its coordinates, int64 indices, where it is zero in the others."""
        return Subspace(self.basis.index_select(0, columns), self.captured)

    def within(self, columns: Tensor, d: int) -> Subspace:
        """The same subspace where its coordinates are some, int64 indices, of d."""
        return Subspace(self.basis.new_zeros(d, self.rank).index_copy_(0, columns, self.basis), self.captured)

    def to(self, dtype: torch.dtype) -> Subspace:
        """The same subspace in another floating-point type."""
        return Subspace(self.basis.to(dtype), self.captured)


def rank_for(eigenvalues: Tensor, fraction: float, *, rule: Rule = "energy") -> int:
    """The smallest k whose leading `eigenvalues` (descending, of C) hold `fraction` of the total.

    With rule "energy" the total is that of the eigenvalues, with "singular_values" that of their square roots, which
    keeps many more directions for the same number. A fraction of 1 means the numerical rank.

    >>> rank_for(torch.tensor([8.0, 1.0, 1.0, 0.0]), 0.9)
    2
    """
    if not 0 < fraction <= 1:
        raise InputError(f"the fraction of energy to keep is {fraction}; it must be above 0 and at most 1")
    values = eigenvalues.double().clamp(min=0)
    if values.numel() == 0 or values[0] <= 0:
        return 0
    floor = values[0] * len(values) * torch.finfo(eigenvalues.dtype).eps
    rank = int((values > floor).sum())
    if fraction == 1:
        return rank
    weights = values if rule == "energy" else values.sqrt()
    share = weights.cumsum(0) / weights.sum()
    return min(int((share < fraction).sum()) + 1, rank)


def principal_subspace(
    second_moment: Tensor, fraction: float, *, rule: Rule = "energy", dtype: torch.dtype = torch.float64
) -> Subspace:
    """The leading eigenvectors of a second moment (d, d) that hold `fraction` of it, decomposed in `dtype`.

    Coordinates that no data reaches (zero rows and columns) are left out first: an eigensolver may fail to converge on
    thousands of them. The basis has the dtype of the input and zeros in those coordinates.
    """
    alive = second_moment.diagonal() > 0
    values, vectors = torch.linalg.eigh(restricted(second_moment, alive).to(dtype))
    values, vectors = values.double().flip(0).clamp(min=0), vectors.flip(1)
    rank = rank_for(values, fraction, rule=rule)
    basis = second_moment.new_zeros(len(second_moment), rank)
    basis[alive] = vectors[:, :rank].to(basis.dtype)
    total = float(values.sum())
    return Subspace(basis, float(values[:rank].sum()) / total if total else 0.0)


def principal_subspace_of(
    rows: Tensor, fraction: float, *, rule: Rule = "energy", dtype: torch.dtype = torch.float64
) -> Subspace:
    """The leading right singular vectors of `rows` (n, d) that hold `fraction` of it.

    Decomposes the smaller of the second moment (d, d) and the Gram matrix (n, n), in `dtype`: with rows = U S Vᵀ, the
    Gram matrix has eigenvectors U and V = rowsᵀ U S⁻¹.
    """
    exact = rows.to(dtype)
    if len(rows) >= rows.shape[1]:
        return principal_subspace(gram(exact), fraction, rule=rule, dtype=dtype).to(rows.dtype)
    dual = principal_subspace(gram(exact.mT), fraction, rule=rule, dtype=dtype)
    # The images of the trailing eigenvectors are not orthogonal to rounding: they are smaller than U is accurate.
    return Subspace(orthonormal(exact.mT @ dual.basis).to(rows.dtype), dual.captured)


def row_space(rows: Tensor, *, noise: float = 0.0) -> Subspace:
    """The span of `rows` (n, d), by the singular values of the rows themselves.

    Singular values down to `noise` or the rounding error of float64, relative to the largest, count: their squares need
    not be representable beside each other, as they must be in a second moment.
    """
    alive = (rows != 0).any(0)
    exact = rows[:, alive].double()
    if len(exact) > exact.shape[1]:
        exact = torch.linalg.qr(exact, mode="r").R
    values, right = torch.linalg.svd(exact, full_matrices=False)[1:]
    floor = max(noise, max(exact.shape) * torch.finfo(torch.float64).eps)
    rank = int((values > floor * values[0]).sum()) if values.numel() else 0
    basis = rows.new_zeros(rows.shape[1], rank)
    basis[alive] = right[:rank].mT.to(basis.dtype)
    total = float(values.square().sum())
    return Subspace(basis, float(values[:rank].square().sum()) / total if total else 0.0)


def restricted(second_moment: Tensor, alive: Tensor) -> Tensor:
    """The rows and columns of a second moment (d, d) marked in `alive`, bool (d)."""
    return second_moment if bool(alive.all()) else second_moment[alive][:, alive]


def project_out(rows: Tensor, basis: Tensor) -> Tensor:
    """Each row of shape (..., d) less its part in the span of `basis` (d, k): rows − (rows B) Bᵀ."""
    if rows.dim() == 2:
        return torch.addmm(rows, rows @ basis, basis.mT, alpha=-1)
    return rows - (rows @ basis) @ basis.mT


def energy_share(part: Tensor, whole: Tensor) -> Tensor:
    """‖part‖² / ‖whole‖², and 0 of nothing, in float64."""
    return energy_shares([part], [whole])[0]


def energy_shares(parts: Sequence[Tensor], wholes: Sequence[Tensor]) -> Tensor:
    """`energy_share` of each, float64 (n)."""
    inside, total = (torch.stack(torch._foreach_norm(list(each), 2, dtype=torch.float64)) for each in (parts, wholes))
    return torch.where(total == 0, 0.0, inside / total).square()


def last_in_one_column(columns: Tensor) -> Tensor:
    """Orthonormal columns of the same span, of which at most the first has a last entry other than zero."""
    last = columns[-1]
    if not bool(last[1:].any()):
        return columns
    # The reflection that takes `last` to a multiple of the first axis, away from it for the sake of rounding.
    normal = last.clone()
    normal[0] += torch.where(last[0] < 0, -1.0, 1.0) * last.norm()
    turned: Tensor = columns - torch.outer(columns @ normal, normal) * (2 / normal.dot(normal))
    return turned


def _unit_columns(columns: Tensor) -> Tensor:
    """The columns brought to length one, without those that are zero to rounding."""
    length = columns.norm(dim=0)
    long = length > 8 * torch.finfo(columns.dtype).eps
    unit: Tensor = columns[:, long] / length[long]
    return unit
