"""Directions within the scope of a null-space move, many at a time, as vectors over all movable weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..linalg.co_subspace import AnySubspace
from ..linalg.side_streams import SideStreams
from ..linalg.subspace import Subspace
from .weight_rows import WeightRows

if TYPE_CHECKING:
    from .null_scope import Scope

# Rounding errors of a projection, in units of the precision: the root of some thousand products that are summed.
_ROUNDING = 256
# Room is left for a column more in so many, and in multiples of so many: a tracked subspace grows now and then.
_SPARE = 8
_TOGETHER = 32


class NullProjection:
    """The projection onto what a scope allows, of vectors laid out by `layout` for parameters `like` those given."""

    def __init__(self, scope: Scope, like: Mapping[str, Tensor]) -> None:
        weights = {b.weight: (scope.bias_of(b), len(b.blocks)) for b in scope.bases.values()}
        self.layout = WeightRows(weights, list(scope.features), like)
        kind = self.layout.dtype
        self._blocks: list[tuple[_Columns, ...]] = []
        self._masks: list[Tensor | None] = []
        # What the masks are views of.
        self._reached: list[Tensor | None] = []
        for basis, place in zip(scope.bases.values(), self.layout.places, strict=False):
            blocks = basis.blocks
            if basis.bias is not None and place.bias is None:
                blocks = tuple(block.without_last() for block in blocks)
            self._blocks.append(tuple(_Columns.of(block.to(kind)) for block in blocks))
            everywhere = basis.reaches == basis.reached.numel()
            self._masks.append(None if everywhere else basis.reached[:, None, : place.d])
            self._reached.append(None if everywhere else basis.reached)
        for subspace in scope.features.values():
            self._blocks.append((_Columns.of(subspace.to(kind)),))
            self._masks.append(None)
            self._reached.append(None)

    def __call__(self, vectors: Tensor) -> Tensor:
        """The part of each vector (m, n) that the move may take; zero where what is left of a layer's rows is no more
        than rounding error, which would point anywhere.
        """
        found = torch.empty_like(vectors)
        parts = zip(self.layout.parts(vectors), self.layout.parts(found), strict=True)
        pieces = [
            partial(_project_place, place.blocks(before), place.blocks(after), blocks, mask)
            for place, blocks, mask, (before, after) in zip(
                self.layout.places, self._blocks, self._masks, parts, strict=True
            )
        ]
        with SideStreams(vectors.device) as sides:
            # Each is two products: as soon launched as handed to a thread.
            sides.each(pieces, apart=False)
        smallest = _ROUNDING * torch.finfo(vectors.dtype).eps
        left, given = self._norms(found, vectors)
        return self.layout.scaled_(found, left > smallest * given)

    def with_room(self) -> RoomyProjection:
        """The same projection, which can become that of other bases where it lies."""
        return RoomyProjection(self)

    def _norms(self, *every: Tensor) -> Tensor:
        """The length of each of several vectors (m, n) at each place, float64 (len(every), m, places)."""
        parts = [part for vectors in every for row in vectors.unbind() for part in self.layout.parts(row)]
        norms = torch.stack(torch._foreach_norm(parts, 2, dtype=torch.float64))
        return norms.reshape(len(every), len(every[0]), -1)

    @cached_property
    def reach(self) -> Tensor | None:
        """True at every entry of a vector that some input reaches, shape (n); None where that is all of them."""
        masked = [mask for mask in self._masks if mask is not None]
        if not masked:
            return None
        found = torch.ones(1, self.layout.length, dtype=torch.bool, device=masked[0].device)
        for place, part, mask in zip(self.layout.places, self.layout.parts(found), self._masks, strict=True):
            if mask is not None:
                place.blocks(part).copy_(mask)
        return found[0]

    def reached(self, vector: Tensor) -> Tensor:
        """The vector with zeros where no input reaches."""
        return vector if self.reach is None else vector * self.reach.to(vector.device)


class RoomyProjection(NullProjection):
    """A projection whose tensors stay where they are, with room for some more columns: for graphs that read them."""

    def __init__(self, like: NullProjection) -> None:
        self.layout = like.layout
        self._blocks = [tuple(columns.with_room() for columns in blocks) for blocks in like._blocks]
        self._held = [tuple(columns.columns.shape[1] for columns in blocks) for blocks in like._blocks]
        device = next((columns.columns.device for blocks in like._blocks for columns in blocks), None)
        self._masks = [None if mask is None else mask.to(device, copy=True) for mask in like._masks]
        self._reached = list(like._reached)
        self._reach = None if like.reach is None else like.reach.to(device, copy=True)

    @property
    def reach(self) -> Tensor | None:
        """As that of every projection."""
        return self._reach

    def take(self, other: NullProjection) -> bool:
        """Become the other one, without a read; whether that is possible. It is laid out like this one then, and has
        masks at most where this one has some.
        """
        if not self._can_take(other):
            return False
        places, given = [], []
        for number, (mine, theirs) in enumerate(zip(self._blocks, other._blocks, strict=True)):
            counts = tuple(columns.columns.shape[1] for columns in theirs)
            for columns, new, before, now in zip(mine, theirs, self._held[number], counts, strict=True):
                if now < before:
                    columns.columns[:, now:before].zero_()
                places.append(columns.columns[:, :now])
                given.append(new.columns)
            self._held[number] = counts
        if places:
            torch._foreach_copy_(places, given)
        self._take_masks(other)
        return True

    def _can_take(self, other: NullProjection) -> bool:
        if self.layout.places != other.layout.places or self.layout.dtype != other.layout.dtype:
            return False
        masks = zip(self._masks, other._masks, strict=True)
        masked = all(theirs is None or mine is not None for mine, theirs in masks)
        pairs = [pair for blocks in zip(self._blocks, other._blocks, strict=True) for pair in zip(*blocks, strict=True)]
        return masked and all(mine.has_room_for(theirs) for mine, theirs in pairs)

    def _take_masks(self, other: NullProjection) -> None:
        changed = False
        for number, (mask, new) in enumerate(zip(self._masks, other._masks, strict=True)):
            # Most of the time a layer says the same, by the same tensor: nobody writes to it.
            if mask is None or other._reached[number] is self._reached[number]:
                continue
            _become(mask, new)
            self._reached[number] = other._reached[number]
            changed = True
        if changed and self._reach is not None:
            _become(self._reach, other.reach)


def _become(mask: Tensor, other: Tensor | None) -> None:
    """Have a mask be another one, of which None is True everywhere."""
    if other is None:
        mask.fill_(True)
    else:
        mask.copy_(other)


def _project_place(given: Tensor, left: Tensor, blocks: Sequence[_Columns], mask: Tensor | None) -> None:
    """What is left of rows (m, groups, r, d) outside of the subspace of each group, written to `left`."""
    for block, rows, out in zip(blocks, given.unbind(1), left.unbind(1), strict=True):
        block.project_out(rows, out)
    if mask is not None:
        # A subspace may reach into coordinates that data reached once and no longer does.
        left.mul_(mask.to(left.device))


class _Columns:
    """The columns (d, k) that a subspace is projected out by: its basis, or, where it is not `spanned` by them, the
    directions orthogonal to it.
    """

    def __init__(self, columns: Tensor, *, spanned: bool) -> None:
        self.columns, self.spanned = columns, spanned

    @classmethod
    def of(cls, block: AnySubspace) -> _Columns:
        """Those of a subspace."""
        spanned = isinstance(block, Subspace)
        return cls(block.basis if isinstance(block, Subspace) else block.normals, spanned=spanned)

    def with_room(self) -> _Columns:
        """A copy with columns of zeros after them, which project nothing out, in the place of more."""
        d, count = self.columns.shape
        room = min(d, _TOGETHER * -(-(count + max(count // _SPARE, _TOGETHER)) // _TOGETHER))
        # Columns lie one after the other, as those of tracked subspaces do: copied all by one call.
        wide = self.columns.new_zeros(max(room, count), d).mT
        wide[:, :count] = self.columns
        return _Columns(wide, spanned=self.spanned)

    def has_room_for(self, other: _Columns) -> bool:
        """Whether the other's columns could take the place of these."""
        mine, theirs = self.columns, other.columns
        same = self.spanned == other.spanned and len(mine) == len(theirs) and mine.dtype == theirs.dtype
        return same and theirs.shape[1] <= mine.shape[1]

    def project_out(self, rows: Tensor, out: Tensor) -> None:
        """`block.project_out` of rows (m, r, d), written to `out`: two products, and no copy of what lies apart."""
        columns = self.columns.unsqueeze(0)
        if len(rows) > 1:
            columns = columns.expand(len(rows), -1, -1)
        within = torch.bmm(rows, columns)
        if self.spanned:
            torch.baddbmm(rows, within, columns.mT, alpha=-1, out=out)
        else:
            torch.bmm(within, columns.mT, out=out)
