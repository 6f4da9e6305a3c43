"""A shift of weights orthogonal to what enters their layers, with what is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .input_bases import InputBasis
from .move import Translation


@dataclass(frozen=True, eq=False)
class NullMove(Translation):
    """θ′ = θ + δ with δ orthogonal to the inputs of every layer it touches.

    `bases` are those inputs by weight name, `left` says of every parameter that may not move why it stays, `energies`
    are the summed gradient energies Σᵢ‖∇ℓᵢ‖² of the forget batch at both ends (None without one), `notes` what a reader
    should know.
    """

    bases: Mapping[str, InputBasis] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)
    energies: tuple[float, float] | None = None
    notes: tuple[str, ...] = ()

    def scaled(self, factor: float) -> NullMove:
        """θ′ = θ + factor · δ; the energy at the end is then unknown."""
        shifts = {name: factor * shift for name, shift in self.shifts.items()}
        return replace(self, shifts=shifts, energies=self.energies if factor == 1 else None)

    def inverse(self) -> NullMove:
        """The move back."""
        return self.scaled(-1.0)
