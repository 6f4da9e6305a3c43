"""Moments of the factors τ that channels are rescaled by, and which ratios of them keep the mean energy.

A gradient coordinate is rescaled by a product r of powers of factors: 1/τ for weights that lead from pinned channels
into a free one, τ for those that lead out of it, and τ_in/τ_out between two free ones.

- uniform: E[τ²] = 1 + s²/3 and E[τ⁻²] = 1/(1 − s²), so none of the three keeps its energy;
- lognormal: E[τ²] = 1, E[τ⁻²] = exp(4s²), so only what leads out of a free channel does;
- truncated_normal: none of the three does.

No law does better, however the factors depend on each other: along a path from input to output the ratios multiply to
1, so their E[log r²] add up to 0, while E[r²] = 1 makes each E[log r²] negative (Jensen) unless r is constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from scipy.integrate import quad
from scipy.special import ndtr

from ..errors import InputError, nearest
from ..symmetry.rescaling import LEAST_NORMAL, Law, check_law

Which = Literal["out", "in", "between"]

_WORDS: dict[str, str] = {
    "out": "r = τ (weights that lead out of a free channel)",
    "in": "r = 1/τ (weights that lead into a free channel)",
    "between": "r = τ_in/τ_out (weights between free channels)",
}


@dataclass(frozen=True)
class ScaleEnergy:
    """E[r²] of a law for the three kinds of ratios: r = τ, r = 1/τ, and the ratio of two independent factors."""

    law: Law
    spread: float
    out: float
    into: float

    @property
    def between(self) -> float:
        """E[τ²] E[τ⁻²], which is 1 for a constant factor alone."""
        return self.out * self.into


def scale_energy(law: Law, spread: float) -> ScaleEnergy:
    """E[r²] of the gradient coordinates around a free channel.

    >>> energy = scale_energy("lognormal", 0.5)
    >>> round(energy.out, 12), round(energy.into, 6), round(energy.between, 6)
    (1.0, 2.718282, 2.718282)
    """
    return ScaleEnergy(law, spread, scale_moment(law, spread, power=2), scale_moment(law, spread, power=-2))


def require_energy_preserving_law(law: Law, spread: float, *, which: Which) -> None:
    """Refuse a law under which ratios of this kind have E[r²] other than 1."""
    if which not in get_args(Which):
        raise InputError(f"which is {which!r}; {nearest(str(which), get_args(Which))}")
    energy = scale_energy(law, spread)
    value = {"out": energy.out, "in": energy.into, "between": energy.between}[which]
    if abs(value - 1) > 1e-9:
        raise InputError(
            f"law {law!r} with spread {spread:g} has E[r²] = {value:.6g} for {_WORDS[which]}, not 1: the bound "
            "promises no gain; use law='lognormal' on what leads out of a free channel, or divide r² by its mean"
        )


def scale_moment(law: Law, spread: float, *, power: float, least: float = 0.0) -> float:
    """E[τ^power], where a factor below `least` is 1 instead, as that of a channel with little running variance is."""
    check_law(law, spread)
    if law == "lognormal":
        held = float(ndtr((np.log(least) + spread**2) / spread)) if least > 0 else 0.0
        beyond = (-(spread**2) + power * spread**2 - np.log(least)) / spread if least > 0 else np.inf
        return float(np.exp(-power * spread**2 + 0.5 * (power * spread) ** 2) * ndtr(beyond)) + held
    if law == "uniform":
        low = min(max(1 - spread, least), 1 + spread)
        return _power_integral(power, low, 1 + spread) / (2 * spread) + (low - 1 + spread) / (2 * spread)
    begin = (LEAST_NORMAL - 1) / spread
    mass, low = float(ndtr(-begin)), max((least - 1) / spread, begin)
    # Twelve standard deviations away a Gaussian has no mass in float64.
    inner, outer = max(low, -12.0), max(low, 0.0) + 12.0
    found = quad(lambda z: (1 + spread * z) ** power * np.exp(-0.5 * z**2), inner, outer, epsabs=0, epsrel=1e-11)[0]
    return float(found / np.sqrt(2 * np.pi) + ndtr(low) - ndtr(begin)) / mass


def _power_integral(power: float, low: float, high: float) -> float:
    """∫ t^power dt from low to high."""
    if power == -1:
        return float(np.log(high / low))
    return float((high ** (power + 1) - low ** (power + 1)) / (power + 1))
