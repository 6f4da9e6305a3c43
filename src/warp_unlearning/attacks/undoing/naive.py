"""*naive*: the unlearned weights as they are, which is all that an attacker who knows of no defence does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .protocol import Held, NamedStep, Undo
from .states import CleanedDifference


@dataclass(frozen=True)
class Naive(NamedStep):
    """Nothing is undone: what every other step is compared with."""

    step_name: ClassVar[str] = "naive"

    def prepared(self, held: Held) -> Undo:
        """Nothing to prepare."""
        return CleanedDifference(held, lambda delta: {})
