"""The directions that hold most of a second moment, and projections onto their complement.

A second moment C = Σ p pᵀ, shape (d, d), has the squared singular values of the matrix of columns p as its eigenvalues.
Projections are two thin products; a d×d projector is never formed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..errors import InputError

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


def principal_subspace(second_moment: Tensor, fraction: float, *, rule: Rule = "energy") -> Subspace:
    """The leading eigenvectors of a second moment (d, d) that hold `fraction` of it.

    Coordinates that no data reaches (zero rows and columns) are left out first: an eigensolver may fail to converge on
    thousands of them. The basis has the dtype of the input and zeros in those coordinates.
    """
    alive = second_moment.diagonal() > 0
    values, vectors = torch.linalg.eigh(second_moment[alive][:, alive].double())
    values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)
    rank = rank_for(values, fraction, rule=rule)
    basis = second_moment.new_zeros(len(second_moment), rank)
    basis[alive] = vectors[:, :rank].to(basis.dtype)
    total = float(values.sum())
    return Subspace(basis, float(values[:rank].sum()) / total if total else 0.0)


def principal_subspace_of(rows: Tensor, fraction: float, *, rule: Rule = "energy") -> Subspace:
    """The leading right singular vectors of `rows` (n, d) that hold `fraction` of it.

    Decomposes the smaller of the second moment (d, d) and the Gram matrix (n, n), in float64: with rows = U S Vᵀ, the
    Gram matrix has eigenvectors U and V = rowsᵀ U S⁻¹.
    """
    exact = rows.double()
    if len(rows) >= rows.shape[1]:
        found = principal_subspace(exact.mT @ exact, fraction, rule=rule)
        return Subspace(found.basis.to(rows.dtype), found.captured)
    dual = principal_subspace(exact @ exact.mT, fraction, rule=rule)
    image = exact.mT @ dual.basis
    return Subspace((image / image.norm(dim=0)).to(rows.dtype), dual.captured)


def project_out(rows: Tensor, basis: Tensor) -> Tensor:
    """Each row of shape (..., d) less its part in the span of `basis` (d, k): rows − (rows B) Bᵀ."""
    return rows - (rows @ basis) @ basis.mT
