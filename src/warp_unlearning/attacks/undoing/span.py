"""*span*: the difference projected on where the inputs of each layer lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...errors import InputError
from .input_spectra import InputSpectrum, input_spectra
from .protocol import Held, NamedStep, Undo
from .states import CleanedDifference


@dataclass(frozen=True)
class Span(NamedStep):
    """Δ[W b] of every linear layer is projected on the leading directions B of its inputs on the probe points, those
    that hold `energy` of them: Δ B Bᵀ. A null-space move has no component there. Other parameters stay as they are.

    The default was chosen on other networks than those of the reported numbers, out of 0.9, 0.95, 0.98, 0.99 and 0.995.
    """

    step_name: ClassVar[str] = "span"

    energy: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.energy <= 1:
            raise InputError(f"the energy of the span is {self.energy}; it must be above 0 and at most 1")

    def prepared(self, held: Held) -> Undo:
        """Decompose the inputs of every layer."""
        spectra = held.once(input_spectra)

        def clean(delta: dict[str, Tensor]) -> dict[str, Tensor]:
            found: dict[str, Tensor] = {}
            for spectrum in spectra:
                found |= spectrum.parameters(_projected(spectrum, spectrum.rows(delta), self.energy), delta)
            return found

        return CleanedDifference(held, clean)


def _projected(spectrum: InputSpectrum, rows: Tensor, energy: float) -> Tensor:
    bases = [v[:, :k] for v, k in zip(spectrum.vectors, spectrum.ranks(energy), strict=True)]
    return torch.stack([part @ basis @ basis.mT for part, basis in zip(rows, bases, strict=True)])
