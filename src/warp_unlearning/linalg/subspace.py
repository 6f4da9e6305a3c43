"""Leading subspaces of layer inputs, projections onto their complement, and the norm of a list of tensors.

Inputs are the columns of X, (groups, d, n): a layer with groups has a subspace for each. Their second moment C = X Xᵀ
has the squared singular values of X as its eigenvalues. A basis is a tensor (groups, d, k) of orthonormal columns; a
group that needs fewer than k has zero columns last. A d × d projector is never formed.

Null-space moves and projected gradient unlearning keep out of these subspaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import InputError

Rule = Literal["energy", "singular_values"]

# Narrower blocks of a Gram matrix multiply more slowly than leaving out the upper half saves.
_NARROWEST_BLOCK = 192
# Eigenvalues below so many rounding errors of the largest are zeros. Errors of up to 5 were measured, with 64 to 2,304
# coordinates and up to 60,000 inputs.
_ROUNDING = 32


@dataclass(frozen=True, eq=False)
class Leading:
    """The leading eigenvectors of a second moment.

    `basis` is (groups, d, k), `energies` (groups, k) holds the eigenvalues, `ranks` the number of columns that each
    group uses, `captured` the share of the energy that the basis holds in the group where it holds least.
    """

    basis: Tensor
    energies: Tensor
    ranks: tuple[int, ...]
    captured: float


class SecondMoment:
    """The second moment of inputs that arrive in batches, in `dtype`.

    Only coordinates that some input reaches are multiplied: thousands of zero rows and columns can keep an eigensolver
    from converging. The inputs themselves are kept while they are fewer than these coordinates, so that a wide layer
    never has a d × d matrix. With `exact` they are kept throughout, compressed by QR: squaring them, as a second moment
    does, would lose singular values below the root of the rounding error. With a basis `along`, C · along is summed up.
    """

    def __init__(self, dtype: torch.dtype, *, exact: bool = False, along: Tensor | None = None) -> None:
        self.dtype, self.along, self.positions = dtype, along, 0
        self._exact = exact
        self._noise = torch.finfo(dtype).eps  # The rounding error of the inputs, which may come in a coarser type.
        self._energy: Tensor | None = None  # (groups, d): the squared length of each coordinate over all inputs
        self._kept: Tensor | None = None  # (groups, d, n): the inputs themselves, as long as they are kept
        self._reached: Tensor | None = None  # int64, ascending: the coordinates of `_sum`
        self._sum: Tensor | None = None  # (groups, reached, reached), or (groups, reached, k) with `along`

    @property
    def energy(self) -> Tensor:
        """The sum of squares of each coordinate over all inputs, the diagonal of C; (groups, d)."""
        assert self._energy is not None, "no inputs were added"
        return self._energy

    def add(self, columns: Tensor) -> None:
        """Add inputs (groups, d, n) to the moment."""
        self.positions += columns.shape[2]
        self._noise = max(self._noise, torch.finfo(columns.dtype).eps)
        columns = columns.to(self.dtype)
        energy = torch.linalg.vector_norm(columns, dim=2).square()
        self._energy = energy if self._energy is None else self._energy + energy
        reached_count = self._extend_reached()
        if self._sum is None and self.along is None:
            # A copy, since a later in-place operation may write over a layer's input.
            kept = columns.clone() if self._kept is None else torch.cat([self._kept, columns], 2)
            if self._exact and kept.shape[2] > 2 * reached_count:
                kept = self._widened(torch.linalg.qr(self._restricted(kept).mT, mode="r").R.mT)
            if self._exact or kept.shape[2] <= reached_count:
                self._kept = kept
                return
            self._kept, columns = None, kept
        reached = self._restricted(columns)
        product = gram(reached) if self.along is None else reached @ (reached.mT @ self._restricted(self.along))
        self._sum = product if self._sum is None else self._sum.add_(product)

    def times(self, basis: Tensor) -> Tensor:
        """C · basis, with C = X Xᵀ over all inputs X, for a basis (groups, d, k)."""
        if self._sum is None:
            assert self._kept is not None, "no inputs were added"
            return self._kept @ (self._kept.mT @ basis)
        return self._widened(self._sum if self.along is basis else self._sum @ self._restricted(basis))

    def leading(
        self, energy: float, *, k: int | None = None, k_max: int | None = None, rule: Rule = "energy"
    ) -> Leading:
        """Decompose C = X Xᵀ. Returns leading directions that hold `energy` of it by `rule`, at most `k_max`; or `k` of
        them, where it is given, as far as C has so many.
        """
        if self._sum is None:
            assert self._kept is not None, "no inputs were added"
            columns = self._restricted(self._kept)
            values, vectors = _singular(columns) if self._exact else _descending(columns.mT @ columns)
        else:
            columns, (values, vectors) = None, _descending(self._sum)
        floor = None
        if columns is not None and self._exact:
            # Rounding errors of the decomposition, and of inputs in a coarser type.
            rounding = max(self.positions, columns.shape[1]) * torch.finfo(self.dtype).eps
            floor = max(rounding, values.shape[1] * self._noise) ** 2
        ranks = rank_for(values, energy if k is None else 1.0, rule=rule, floor=floor)
        limit = min(n for n in (k, k_max, int(ranks.max())) if n is not None)
        ranks = ranks.clamp(max=limit)
        kept = values[:, :limit] * (torch.arange(limit, device=values.device) < ranks[:, None])
        basis = vectors[..., :limit] * (kept > 0)[:, None]
        if columns is not None and not self._exact:
            # X = U S Vᵀ: the Gram matrix of the inputs has V, and X V = U S.
            basis = orthonormal(columns @ basis)
        total = values.sum(1)
        shares = torch.where(total > 0, kept.sum(1) / total, 1.0)
        return Leading(self._widened(basis), kept, tuple(ranks.tolist()), float(shares.min()))

    def _extend_reached(self) -> int:
        """Extend the sum by the coordinates that inputs reach for the first time; returns how many are reached now."""
        before, self._reached = self._reached, (self.energy > 0).any(0).nonzero().flatten()
        count = len(self._reached)
        if self._sum is not None and before is not None and len(before) < count:
            indices, (groups, _, width) = torch.searchsorted(self._reached, before), self._sum.shape
            self._sum = self._sum.new_zeros(groups, count, width).index_copy_(1, indices, self._sum)
            if self.along is None:
                self._sum = self._sum.new_zeros(groups, count, count).index_copy_(2, indices, self._sum)
        return count

    def _restricted(self, columns: Tensor) -> Tensor:
        """Columns (groups, d, n) in the reached coordinates alone."""
        assert self._reached is not None
        return columns if len(self._reached) == columns.shape[1] else columns[:, self._reached]

    def _widened(self, columns: Tensor) -> Tensor:
        """Columns in the reached coordinates as (groups, d, n), zero in the others: the reverse of `_restricted`."""
        assert self._reached is not None
        if columns.shape[1] == self.energy.shape[1]:
            return columns
        wide = columns.new_zeros(len(columns), self.energy.shape[1], columns.shape[2])
        return wide.index_copy_(1, self._reached, columns)


def gram(columns: Tensor) -> Tensor:
    """X Xᵀ for X of shape (groups, d, n), from the blocks on and below its diagonal, by about half the operations."""
    d = columns.shape[1]
    blocks = max(1, min(6, d // _NARROWEST_BLOCK))
    if blocks == 1:
        return columns @ columns.mT
    total = columns.new_empty(len(columns), d, d)
    for begin, end in pairwise([d * i // blocks for i in range(blocks + 1)]):
        total[:, begin:, begin:end] = columns[:, begin:] @ columns[:, begin:end].mT
        total[:, begin:end, end:] = total[:, end:, begin:end].mT
    return total


def orthonormal(columns: Tensor) -> Tensor:
    """An orthonormal basis of the span of columns (groups, d, k), by Cholesky QR twice; zero columns stay zero."""
    for largest_overlap in (inf, 0.3):
        columns = F.normalize(columns, dim=1, eps=torch.finfo(columns.dtype).tiny)
        gram_matrix = columns.mT @ columns
        gram_matrix.diagonal(dim1=1, dim2=2)[:] = 1.0
        factor, failed = torch.linalg.cholesky_ex(gram_matrix)
        # The second round can mend rounding errors alone: after the first, columns must be nearly orthogonal.
        if bool(failed.any() | (torch.linalg.vector_norm(gram_matrix.tril(-1)) > largest_overlap)):
            # For a zero column QR returns an arbitrary direction, which later columns may need: move zero ones last.
            zero = ~columns.any(1, keepdim=True)
            order = zero.int().argsort(dim=2, stable=True).expand_as(columns)
            basis = torch.linalg.qr(columns.gather(2, order)).Q
            return torch.zeros_like(columns).scatter_(2, order, basis).masked_fill(zero, 0)
        columns = torch.linalg.solve_triangular(factor.mT, columns, upper=True, left=False)
    return columns


def project_out(rows: Tensor, basis: Tensor) -> Tensor:
    """Remove from each row of shape (..., d) its part in the span of `basis` (..., d, k): rows − (rows B) Bᵀ."""
    return rows - (rows @ basis) @ basis.mT


def global_norm(tensors: Sequence[Tensor], *, dtype: torch.dtype | None = None) -> Tensor:
    """The Euclidean norm of several tensors as one vector, a scalar computed in `dtype` (theirs, if None)."""
    norms = torch.stack(torch._foreach_norm(list(tensors), 2, dtype=dtype))
    return cast(Tensor, norms.norm())


def rank_for(eigenvalues: Tensor, fraction: float, *, rule: Rule = "energy", floor: float | None = None) -> Tensor:
    """The smallest k whose leading `eigenvalues` (..., n), descending, hold `fraction` of the total, int64 (...).

    With rule "energy" the total is that of the eigenvalues, with "singular_values" that of their square roots, which
    keeps many more directions for the same number. Eigenvalues below `floor` times the largest (32 rounding errors of
    their type, if None) are taken for zeros; a fraction of 1 means all others.

    >>> rank_for(torch.tensor([8.0, 1.0, 1.0, 0.0]), 0.9)
    tensor(2)
    """
    if not 0 < fraction <= 1:
        raise InputError(f"the fraction of energy to keep is {fraction}; it must be above 0 and at most 1")
    floor = _ROUNDING * torch.finfo(eigenvalues.dtype).eps if floor is None else floor
    leading = eigenvalues > eigenvalues[..., :1].clamp(min=0) * floor
    if fraction < 1:
        weights = eigenvalues.double().clamp(min=0)
        weights = weights if rule == "energy" else weights.sqrt()
        leading &= weights.cumsum(-1) - weights < fraction * weights.sum(-1, keepdim=True)
    return leading.sum(-1)


def _descending(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (groups, n), largest first and none below 0, and eigenvectors of symmetric matrices."""
    try:
        values, vectors = torch.linalg.eigh(matrix)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        # Single precision sometimes fails where double converges.
        values, vectors = (part.to(matrix) for part in torch.linalg.eigh(matrix.double()))
    return values.flip(-1).clamp(min=0), vectors.flip(-1)


def _singular(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Squared singular values and left singular vectors of (groups, d, n)."""
    vectors, values, _ = torch.linalg.svd(columns, full_matrices=False)
    return values.square(), vectors
