"""*filter*: the difference shrunk, direction by direction, to the energy that gradients have there.

With o the energy of the difference along a direction of a layer's inputs, and a·s what a gradient has there on average,
a being read off the leading directions of all layers, o = a·s + noise, and the coefficient of Wiener's filter is
a·s / o, at most 1. It needs no knowledge of how much of the inputs' energy a defender protects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .input_spectra import InputSpectrum, input_spectra
from .probe_gradients import ProbeGradients
from .protocol import Held, NamedStep, Undo, Weights
from .states import CleanedDifference

# The directions from which the size of the update is read.
_LEADING = 0.9


@dataclass(frozen=True, eq=False)
class _Energies:
    """Of one group of one weight: the energy along each of its directions, (k,), and that beside them all."""

    along: Tensor
    beside: Tensor


@dataclass(frozen=True)
class WienerFilter(NamedStep):
    """Δ[W b] of every linear layer, each direction of its inputs times a·s / o; what lies beside all of these
    directions is taken as one. Other parameters stay as they are.
    """

    step_name: ClassVar[str] = "filter"

    def prepared(self, held: Held) -> Undo:
        """Decompose the inputs of every layer, and measure probe gradients along them."""
        spectra, expected = held.once(input_spectra), held.once(gradient_energies)

        def clean(delta: dict[str, Tensor]) -> dict[str, Tensor]:
            return _filtered(spectra, expected, delta)

        return CleanedDifference(held, clean)


def gradient_energies(held: Held) -> dict[str, list[_Energies]]:
    """The mean energy of probe points' unit gradients along the directions of every weight's inputs, by group."""
    spectra, gradients = held.once(input_spectra), held.once(ProbeGradients)
    sums: dict[str, list[_Energies]] = {}
    for chunk in gradients:
        for spectrum in spectra:
            found = _energies(spectrum, spectrum.rows(chunk, points=len(chunk[spectrum.weight])))
            before = sums.get(spectrum.weight)
            sums[spectrum.weight] = (
                found if before is None else [_sum(*pair) for pair in zip(before, found, strict=True)]
            )
    n = len(gradients)
    return {name: [_Energies(e.along / n, e.beside / n) for e in found] for name, found in sums.items()}


def _energies(spectrum: InputSpectrum, rows: Tensor) -> list[_Energies]:
    found = []
    for part, vectors in zip(rows, spectrum.vectors, strict=True):
        along = (part @ vectors.to(part.dtype)).square().sum(0).double()
        whole = part.square().sum().double()
        # What is left by subtraction is rounding error where the vectors span everything that gradients reach.
        beside = (whole - along.sum()).clamp(min=0)
        found.append(_Energies(along, torch.where(beside > 1e-6 * whole, beside, 0.0)))
    return found


def _sum(one: _Energies, other: _Energies) -> _Energies:
    return _Energies(one.along + other.along, one.beside + other.beside)


def _filtered(spectra: list[InputSpectrum], expected: dict[str, list[_Energies]], delta: Weights) -> dict[str, Tensor]:
    seen = {s.weight: _energies(s, s.rows(delta)) for s in spectra}
    leading = {s.weight: s.ranks(_LEADING) for s in spectra}
    size = _leading_energy(seen, leading) / _leading_energy(expected, leading)
    found: dict[str, Tensor] = {}
    for s in spectra:
        rows = []
        for part, vectors, e, o in zip(s.rows(delta), s.vectors, expected[s.weight], seen[s.weight], strict=True):
            along = part @ vectors
            beside = part - along @ vectors.mT
            rows.append(
                (along * _share(size * e.along, o.along)) @ vectors.mT + beside * _share(size * e.beside, o.beside)
            )
        found |= s.parameters(torch.stack(rows), delta)
    return found


def _leading_energy(energies: dict[str, list[_Energies]], leading: dict[str, tuple[int, ...]]) -> Tensor:
    found = [e.along[:k].sum() for name, ks in leading.items() for e, k in zip(energies[name], ks, strict=True)]
    return torch.stack(found).sum().clamp(min=1e-300)


def _share(expected: Tensor, seen: Tensor) -> Tensor:
    return (expected / seen.clamp(min=1e-300)).clamp(max=1)
