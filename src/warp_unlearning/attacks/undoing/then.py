"""Pre-steps one after another."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .asked import asked
from .protocol import Held, PreStep, Undo, Weights
from .states import checked_state


@dataclass(frozen=True)
class Then:
    """The first step, and the second on what it leaves."""

    first: PreStep
    second: PreStep

    @property
    def name(self) -> str:
        """Both names, as "canonical+span"."""
        return f"{self.first.name}+{self.second.name}"

    def prepared(self, held: Held) -> Undo:
        """Prepare both; not applicable where either is not."""
        return _Both(held, held.prepared(self.first), held.prepared(self.second))


@dataclass(frozen=True, eq=False)
class _Both:
    held: Held
    first: Undo
    second: Undo

    def __call__(self, unlearned: Weights) -> dict[str, Tensor]:
        given = asked(unlearned)
        between = given.after(self.first)
        # What the first step leaves as it is the second one may have been asked about before.
        moved = not between.is_same(checked_state(self.held, given))
        return dict((between if moved else given).after(self.second))
