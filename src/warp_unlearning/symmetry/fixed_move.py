"""One move that is already known, where a symmetry is asked for."""

from __future__ import annotations

import torch
from torch import nn

from .move import Move
from .symmetry import Probe, Sizes, Symmetry


class FixedMove:
    """One given move as a symmetry, on behalf of the symmetry it was drawn from."""

    def __init__(self, of: Symmetry, move: Move) -> None:
        self.of = of
        self._move = move

    @property
    def looks_at(self) -> Sizes:
        """Nothing: the move is known."""
        return Sizes()

    def move(self, model: nn.Module, *, generator: torch.Generator, probe: Probe | None = None) -> Move:
        """The move."""
        return self._move
