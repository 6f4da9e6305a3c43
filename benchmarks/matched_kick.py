"""Random null-space moves of given lengths: the control that shows what descending the gradient energy adds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from warp_unlearning.symmetry.null_move import NullMove
from warp_unlearning.symmetry.null_space import NullSpace
from warp_unlearning.symmetry.symmetry import Probe


@dataclass(kw_only=True)
class MatchedKick(NullSpace):
    """The i-th move is random within the null space and has the length `lengths[i]`, over weights that inputs reach."""

    lengths: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.aim, self.radius = "random", 1e6
        self._made = 0

    def move(self, model: nn.Module, *, generator: torch.Generator, probe: Probe | None = None) -> NullMove:
        """The next move."""
        drawn = super().move(model, generator=generator, probe=probe)
        length = float(torch.stack([shift.double().square().sum() for shift in drawn.shifts.values()]).sum().sqrt())
        wanted = self.lengths[self._made]
        self._made += 1
        return drawn.scaled(wanted / length)
