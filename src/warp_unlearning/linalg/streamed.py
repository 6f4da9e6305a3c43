"""The span of rows that arrive in batches, without keeping them all.

While fewer rows than dimensions were seen they are kept as they are, and the smaller Gram matrix is decomposed (the
dual form). Beyond that only their second moment C = Σ p pᵀ is kept, or, where their whole span is asked for, a
triangular factor R with RᵀR = C: a second moment squares the singular values and loses those below the root of the
rounding error.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .gram import add_gram, gram, mirrored
from .rounded_products import rounded_gram
from .subspace import Rule, Subspace, principal_subspace, principal_subspace_of, row_space


class StreamedRows:
    """Rows of `groups` spaces of dimension `d`, seen together: each call adds as many to one space as to the others.

    With `whole` the sums are kept in a form that tells their numerical rank (see above), at about twice the cost.
    Everything is accumulated and decomposed in `dtype`. With `rounded`, rows that make up a second moment, which are to
    be float32 then, are multiplied by `rounded_gram`.
    """

    def __init__(
        self, groups: int, d: int, *, whole: bool = False, rounded: bool = False, dtype: torch.dtype = torch.float64
    ) -> None:
        self.groups, self.d, self.whole, self.rounded, self.dtype = groups, d, whole, rounded, dtype
        self.positions = 0
        self._noise = torch.finfo(dtype).eps
        self._kept: list[Tensor] = []
        self._lower: Tensor | None = None

    def add(self, rows: Tensor) -> None:
        """Take in rows of shape (groups, n, d)."""
        self.positions += rows.shape[1]
        self._noise = max(self._noise, torch.finfo(torch.promote_types(rows.dtype, torch.float32)).eps)
        many = rows.shape[1] > self.d and not self._kept and not self.whole
        if self.rounded and (many or self._lower is not None):
            total = rounded_gram(rows)
            self._lower = total.to(self.dtype) if self._lower is None else self._lower.add_(total)
            return
        own = rows.to(self.dtype)
        if self._lower is not None:
            add_gram(self._lower, own)
            return
        # What is kept must not change with what it was made from.
        self._kept.append(own.clone() if own is rows else own)
        kept = sum(part.shape[1] for part in self._kept)
        if kept > (2 * self.d if self.whole else self.d):
            self._compress()

    def _compress(self) -> None:
        rows = self._joined()
        if self.whole:
            self._kept = [torch.linalg.qr(rows, mode="r").R]
            return
        self._kept, self._lower = [], rows.new_zeros(self.groups, self.d, self.d)
        add_gram(self._lower, rows)

    def _joined(self) -> Tensor:
        self._kept = [torch.cat(self._kept, dim=1)] if len(self._kept) > 1 else self._kept
        return self._kept[0]

    def one(self, group: int) -> StreamedRows:
        """The rows of one space."""
        alone = StreamedRows(1, self.d, whole=self.whole, rounded=self.rounded, dtype=self.dtype)
        alone.positions, alone._noise = self.positions, self._noise
        alone._kept = [part[group : group + 1] for part in self._kept]
        alone._lower = None if self._lower is None else self._lower[group : group + 1]
        return alone

    def within(self, columns: Tensor) -> StreamedRows:
        """The same rows in some of their coordinates, int64 indices in ascending order."""
        narrow = StreamedRows(self.groups, len(columns), whole=self.whole, rounded=self.rounded, dtype=self.dtype)
        narrow.positions, narrow._noise = self.positions, self._noise
        if self._lower is not None:
            narrow._lower = mirrored(self._lower).index_select(1, columns).index_select(2, columns)
            return narrow
        narrow._kept = [part.index_select(2, columns) for part in self._kept]
        if not self.whole and self.positions > narrow.d:
            narrow._compress()
        return narrow

    def widened(self, columns: Tensor, d: int) -> StreamedRows:
        """The same rows where their coordinates are some, int64 indices, of d, and the others are zero."""
        wide = StreamedRows(self.groups, d, whole=self.whole, rounded=self.rounded, dtype=self.dtype)
        wide.positions, wide._noise = self.positions, self._noise
        if self._lower is None:
            wide._kept = [part.new_zeros(*part.shape[:2], d).index_copy_(2, columns, part) for part in self._kept]
            return wide
        across = self._lower.new_zeros(self.groups, self.d, d).index_copy_(2, columns, mirrored(self._lower))
        wide._lower = across.new_zeros(self.groups, d, d).index_copy_(1, columns, across)
        return wide

    def energy(self) -> Tensor:
        """Σ p² of each coordinate, shape (groups, d); not finite where a row was not."""
        if self._lower is not None:
            return self._lower.diagonal(dim1=1, dim2=2)
        return self._joined().square().sum(1)

    def second_moment(self) -> Tensor:
        """C = Σ p pᵀ of each space, shape (groups, d, d)."""
        return gram(self._joined()) if self._lower is None else mirrored(self._lower)

    def compressed(self) -> Tensor | None:
        """`second_moment` where that is the smaller form, and None where there are fewer rows than dimensions."""
        if self._lower is None and self.positions < self.d:
            return None
        return self.second_moment()

    def subspaces(self, fraction: float, *, rule: Rule = "energy") -> tuple[Subspace, ...]:
        """For each space the directions that hold `fraction` of its rows; 1 means all of their span."""
        if self._lower is not None:
            moments = mirrored(self._lower)
            return tuple(principal_subspace(m, fraction, rule=rule, dtype=self.dtype) for m in moments)
        if self.whole and fraction == 1:
            # Rows computed in a coarser type carry its rounding errors, which span everything.
            return tuple(row_space(rows, noise=8 * self._noise) for rows in self._joined())
        return tuple(principal_subspace_of(rows, fraction, rule=rule, dtype=self.dtype) for rows in self._joined())
