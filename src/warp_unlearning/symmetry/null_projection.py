"""Directions within the scope of a null-space move, many at a time, as vectors over all movable weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..linalg.co_subspace import AnySubspace
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
        self._blocks: list[tuple[AnySubspace, ...]] = []
        self._masks: list[Tensor | None] = []
        for basis, place in zip(scope.bases.values(), self.layout.places, strict=False):
            blocks = basis.blocks
            if basis.bias is not None and place.bias is None:
                blocks = tuple(block.without_last() for block in blocks)
            self._blocks.append(tuple(block.to(kind) for block in blocks))
            everywhere = basis.reaches == basis.reached.numel()
            self._masks.append(None if everywhere else basis.reached[:, None, : place.d])
        for subspace in scope.features.values():
            self._blocks.append((subspace.to(kind),))
            self._masks.append(None)

    def __call__(self, vectors: Tensor) -> Tensor:
        """The part of each vector (m, n) that the move may take; zero where what is left of a layer's rows is no more
        than rounding error, which would point anywhere.
        """
        parts, left, given = [], [], []
        for place, blocks, mask in zip(self.layout.places, self._blocks, self._masks, strict=True):
            rows = place.rows(vectors)
            each = [block.to(rows.dtype).project_out(r) for block, r in zip(blocks, rows, strict=True)]
            moved = each[0].unsqueeze(0) if len(each) == 1 else torch.stack(each)
            # A subspace may reach into coordinates that data reached once and no longer does.
            part = place.vectors(moved if mask is None else moved * mask.to(moved.device), len(vectors))
            parts.append(part)
            left.append(torch.linalg.vector_norm(part, dim=1, dtype=torch.float64))
            before = vectors[:, place.begin : place.end]
            given.append(torch.linalg.vector_norm(before, dim=1, dtype=torch.float64))
        smallest = _ROUNDING * torch.finfo(vectors.dtype).eps
        beyond = torch.stack(left, dim=1) > smallest * torch.stack(given, dim=1)
        return torch.cat(parts, dim=1) * self.layout.spread(beyond)

    @cached_property
    def reach(self) -> Tensor | None:
        """True at every entry of a vector that some input reaches, shape (n); None where that is all of them."""
        if all(mask is None for mask in self._masks):
            return None
        parts = []
        for place, mask in zip(self.layout.places, self._masks, strict=True):
            length = place.end - place.begin
            if mask is None:
                parts.append(torch.ones(1, dtype=torch.bool).expand(length))
            else:
                parts.append(mask.expand(-1, length // mask.shape[0] // mask.shape[2], -1).reshape(-1))
        device = next(mask.device for mask in self._masks if mask is not None)
        return torch.cat([part.to(device, non_blocking=True) for part in parts])

    def reached(self, vector: Tensor) -> Tensor:
        """The vector with zeros where no input reaches."""
        return vector if self.reach is None else vector * self.reach.to(vector.device)
