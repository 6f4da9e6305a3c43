"""Pre-steps one after another."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .protocol import Held, PreStep, Undo, Weights


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
        return _Both(self.first.prepared(held), self.second.prepared(held))


@dataclass(frozen=True, eq=False)
class _Both:
    first: Undo
    second: Undo

    def __call__(self, unlearned: Weights) -> dict[str, Tensor]:
        return self.second(self.first(unlearned))
