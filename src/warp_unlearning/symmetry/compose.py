"""Symmetries one after another: T = Tₙ ∘ … ∘ T₁, each drawn for the network as the ones before have moved it.

Points, gradients, labels and layer inputs go through the moves in turn; the inverse is T₁⁻¹ ∘ … ∘ Tₙ⁻¹.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..errors import InputError
from .move import Move, apply_move
from .null_space import TrackedNullSpace
from .symmetry import Probe, Sizes, Symmetry


@dataclass(frozen=True, eq=False)
class ComposedMove:
    """Moves in the order they are made."""

    moves: tuple[Move, ...]

    def point(self, name: str, value: Tensor) -> Tensor:
        """Weights after all moves."""
        for move in self.moves:
            value = move.point(name, value)
        return value

    def covector(self, name: str, value: Tensor) -> Tensor:
        """Gradients after all moves."""
        for move in self.moves:
            value = move.covector(name, value)
        return value

    def selection(self, name: str, value: Tensor) -> Tensor:
        """Labels of entries after all moves."""
        for move in self.moves:
            value = move.selection(name, value)
        return value

    def inputs(self, name: str, value: Tensor) -> Tensor:
        """Layer inputs after all moves."""
        for move in self.moves:
            value = move.inputs(name, value)
        return value

    def inverse(self) -> ComposedMove:
        """The moves back, last one first."""
        return ComposedMove(tuple(move.inverse() for move in reversed(self.moves)))


class Compose:
    """Several symmetries as one."""

    def __init__(self, *symmetries: Symmetry) -> None:
        if not symmetries:
            raise InputError("Compose() was given no symmetry; name at least one, such as Compose(Permutation())")
        if len(symmetries) > 1 and any(isinstance(symmetry, TrackedNullSpace) for symmetry in symmetries):
            raise InputError(
                "Compose() was given a TrackedNullSpace, whose bases cannot follow the others; use NullSpace"
            )
        self.symmetries = symmetries

    @property
    def looks_at(self) -> Sizes:
        """The most that any of the symmetries wants."""
        wanted = [symmetry.looks_at for symmetry in self.symmetries]
        return Sizes(max(w.retain for w in wanted), max(w.forget for w in wanted))

    def move(self, model: nn.Module, *, generator: torch.Generator, probe: Probe | None = None) -> ComposedMove:
        """A move of each symmetry in turn; `model` is left as it is.

        The probe's reference goes along, so that a later symmetry sees the distance there was, not that of the moves.
        """
        moves: list[Move] = []
        moved = deepcopy(model) if len(self.symmetries) > 1 else model
        for symmetry in self.symmetries:
            if moves:
                apply_move(moved, moves[-1])
                probe = _moved_along(probe, moves[-1])
            moves.append(symmetry.move(moved, generator=generator, probe=probe))
        return ComposedMove(tuple(moves))


def _moved_along(probe: Probe | None, move: Move) -> Probe | None:
    if probe is None or probe.reference is None:
        return probe
    return replace(probe, reference={name: move.point(name, value) for name, value in probe.reference.items()})
