"""What a symmetry is: a way to draw a move, out of the network alone, that keeps the network's function."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn

from .move import Move


class Symmetry(Protocol):
    """A family of function-preserving moves that needs no data."""

    def move(self, model: nn.Module, *, generator: torch.Generator) -> Move:
        """A random member of the family for `model`, which is left as it is; apply it with `apply_move`."""
