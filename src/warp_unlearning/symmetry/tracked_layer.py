"""What is kept of the inputs of one weight from one refresh of its basis to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..linalg.blending import blend_weights, blended, missed_shares
from ..linalg.co_subspace import AnySubspace
from ..linalg.fine_type import fine_type
from ..linalg.tracked import TrackedSubspace
from .input_bases import InputBasis
from .kept_columns import KeptColumns
from .linear_weights import LinearWeight


@dataclass
class TrackedLayer:
    """What is kept of one weight: its running second moment (groups, d, d), a mean over inputs; a tracker for each
    group and the subspace it last gave. `within` and `spans` are these within `columns`, where some coordinates are
    never reached.

    `missed` is the share of new inputs' energy that each of them missed at the last refresh; `best` is the smallest
    that the worst of them ever missed.
    """

    within: Tensor
    trackers: list[TrackedSubspace]
    spans: list[AnySubspace] = field(default_factory=list)
    missed: list[float] = field(default_factory=list)
    best: float = 1.0
    columns: KeptColumns | None = None
    # For which columns and shape, and True where those lie.
    _full: tuple[KeptColumns | None, torch.Size, Tensor] | None = field(default=None, repr=False)

    @property
    def moment(self) -> Tensor:
        """The running second moment over all coordinates."""
        if self.columns is None:
            return self.within
        kept, d = self.columns.kept, self.columns.d
        wide = self.within.new_zeros(len(self.within), d, len(kept)).index_copy_(1, kept, self.within)
        return self.within.new_zeros(len(self.within), d, d).index_copy_(2, kept, wide)

    @property
    def blocks(self) -> list[AnySubspace]:
        """The subspaces over all coordinates."""
        if self.columns is None:
            return self.spans
        return [span.within(self.columns.kept, self.columns.d) for span in self.spans]

    def missed_shares(self, rows: Tensor) -> Tensor:
        """The share of the energy of new inputs that each subspace misses, (groups)."""
        return missed_shares([(self.spans, rows)])

    def blended(self, latest: Tensor, missed: Tensor, *, blend: float) -> Tensor:
        """The running second moment with the latest taken in."""
        weight = blend_weights(missed.max().reshape(1), [self.best], blend)[0]
        return blended(self.within, latest, weight)

    def note(self, missed: list[float]) -> None:
        """What was missed of new inputs; nothing where all was forgotten that they could be new to."""
        self.missed = missed
        self.best = min(self.best, max(missed)) if missed else 1.0

    def refreshed(self, weight: LinearWeight, positions: int) -> InputBasis:
        """The basis after a refresh that reads what it needs."""
        self.spans = [tracker.refresh(m) for tracker, m in zip(self.trackers, self.within, strict=True)]
        reached = (self.within.diagonal(dim1=1, dim2=2) > 0).cpu()
        if self.columns is None:
            self.narrow(KeptColumns.of(reached, weight, self.within.device))
        self.awaken()
        return self.basis(weight, self.measured_blocks(), positions, int(reached.sum()))

    def measured_blocks(self) -> list[AnySubspace]:
        """The subspaces within the columns, with the energy of new inputs that was captured, where some were met."""
        if not self.missed:
            return self.spans
        return [replace(block, captured=1 - share) for block, share in zip(self.spans, self.missed, strict=True)]

    def misses(self, *, more_than: float, of: float) -> bool:
        """Whether some group missed `more_than` times the best, or `of` where that is larger."""
        return bool(self.missed) and max(self.missed) > more_than * max(self.best, of)

    def awaken(self) -> None:
        """Go on as if every coordinate that is kept were alive."""
        for tracker in self.trackers:
            tracker.awaken()

    def widen(self) -> None:
        """Keep all coordinates again."""
        if self.columns is None:
            return
        for tracker in self.trackers:
            tracker.widen(self.columns.kept, self.columns.d)
        self.within, self.spans, self.columns = self.moment, self.blocks, None

    def narrow(self, columns: KeptColumns | None) -> None:
        """Keep some of all coordinates; the others have no energy."""
        if columns is None:
            return
        kept = columns.kept
        self.within = self.within.index_select(1, kept).index_select(2, kept)
        for tracker in self.trackers:
            tracker.narrow(kept)
        self.spans = [block.narrowed(kept) for block in self.spans]
        self.columns = columns

    def basis(self, weight: LinearWeight, blocks: Sequence[AnySubspace], positions: int, count: int) -> InputBasis:
        """The basis over all coordinates, of which `count` are reached."""
        kind = fine_type(weight.tensor.dtype)
        wide = [block.to(kind) for block in blocks]
        if self.columns is not None:
            wide = [block.within(self.columns.kept, self.columns.d) for block in wide]
        reached = self._everywhere() if count == self.within.shape[:2].numel() else self._positive()
        return InputBasis(weight.name, weight.bias, tuple(wide), reached, positions, count)

    def _positive(self) -> Tensor:
        """Which of all coordinates have energy, bool (groups, d)."""
        return self._spread(self.within.diagonal(dim1=1, dim2=2) > 0)

    def _everywhere(self) -> Tensor:
        """The same where all that are kept have; not to be written to, since it is given out again and again."""
        shape, device = self.within.shape[:2], self.within.device
        known = self._full
        if known is None or known[0] is not self.columns or known[1] != shape or known[2].device != device:
            found = self._spread(torch.ones(shape, dtype=torch.bool, device=device))
            known = self._full = (self.columns, shape, found)
        return known[2]

    def _spread(self, kept: Tensor) -> Tensor:
        """What is known of the coordinates that are kept, (groups, kept), for all of them."""
        if self.columns is None:
            return kept
        return kept.new_zeros(len(kept), self.columns.d).index_copy_(1, self.columns.kept, kept)
