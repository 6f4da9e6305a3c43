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


class NullProjection:
    """The projection onto what a scope allows, of vectors laid out by `layout` for parameters `like` those given."""

    def __init__(self, scope: Scope, like: Mapping[str, Tensor]) -> None:
        weights = {b.weight: (scope.bias_of(b), len(b.blocks)) for b in scope.bases.values()}
        self.layout = WeightRows(weights, list(scope.features), like)
        kind = self.layout.dtype
        self._blocks: list[tuple[_Columns, ...]] = []
        self._masks: list[Tensor | None] = []
        for basis, place in zip(scope.bases.values(), self.layout.places, strict=False):
            blocks = basis.blocks
            if basis.bias is not None and place.bias is None:
                blocks = tuple(block.without_last() for block in blocks)
            self._blocks.append(tuple(_Columns(block.to(kind)) for block in blocks))
            everywhere = basis.reaches == basis.reached.numel()
            self._masks.append(None if everywhere else basis.reached[:, None, : place.d])
        for subspace in scope.features.values():
            self._blocks.append((_Columns(subspace.to(kind)),))
            self._masks.append(None)

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


def _project_place(given: Tensor, left: Tensor, blocks: Sequence[_Columns], mask: Tensor | None) -> None:
    """What is left of rows (m, groups, r, d) outside of the subspace of each group, written to `left`."""
    for block, rows, out in zip(blocks, given.unbind(1), left.unbind(1), strict=True):
        block.project_out(rows, out)
    if mask is not None:
        # A subspace may reach into coordinates that data reached once and no longer does.
        left.mul_(mask.to(left.device))


class _Columns:
    """The columns that a subspace is projected out by: its basis, or the directions orthogonal to it."""

    def __init__(self, block: AnySubspace) -> None:
        self._spans = isinstance(block, Subspace)
        columns = block.basis if isinstance(block, Subspace) else block.normals
        self._columns, self._rows = columns.unsqueeze(0), columns.mT.unsqueeze(0)

    def project_out(self, rows: Tensor, out: Tensor) -> None:
        """`block.project_out` of rows (m, r, d), written to `out`: two products, and no copy of what lies apart."""
        columns, back = self._columns, self._rows
        if len(rows) > 1:
            columns, back = columns.expand(len(rows), -1, -1), back.expand(len(rows), -1, -1)
        within = torch.bmm(rows, columns)
        if self._spans:
            torch.baddbmm(rows, within, back, alpha=-1, out=out)
        else:
            torch.bmm(within, back, out=out)
