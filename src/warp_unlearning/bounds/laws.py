"""Moments of the factors τ by which channels are rescaled.

A gradient coordinate is rescaled by a product r of powers of factors: 1/τ for weights that lead from pinned channels
into a free one, τ for those that lead out of it, and τ_in/τ_out between two free ones.

- uniform: E[τ²] = 1 + s²/3 and E[τ⁻²] = 1/(1 − s²), so none of the three keeps its mean energy E[r²] = 1;
- lognormal: E[τ²] = 1, E[τ⁻²] = exp(4s²), so only what leads out of a free channel does;
- truncated_normal: none of the three does.

No law does better, however the factors depend on each other: along a path from input to output the ratios multiply to
1, so their E[log r²] add up to 0, while E[r²] = 1 makes each E[log r²] negative (Jensen) unless r is constant.
"""

from __future__ import annotations

import numpy as np
from scipy.integrate import quad
from scipy.special import ndtr

from ..symmetry.rescaling import LEAST_NORMAL, Law, check_law


def scale_moment(law: Law, spread: float, *, power: float, least: float = 0.0) -> float:
    """E[τ^power], where a factor below `least` is 1 instead, as that of a channel with little running variance is.

    >>> round(scale_moment("lognormal", 0.5, power=2), 12), round(scale_moment("lognormal", 0.5, power=-2), 6)
    (1.0, 2.718282)
    """
    check_law(law, spread)
    if law == "lognormal":
        held, low = 0.0, -np.inf
        if least > 0:
            low = (np.log(least) + spread**2) / spread
            held = float(ndtr(low))
        return float(np.exp(-power * spread**2 + 0.5 * (power * spread) ** 2) * ndtr(power * spread - low)) + held
    if law == "uniform":
        low, high = min(max(1 - spread, least), 1 + spread), 1 + spread
        return (_power_integral(power, low, high) + low - (1 - spread)) / (2 * spread)
    begin = (LEAST_NORMAL - 1) / spread
    low = max((least - 1) / spread, begin)
    # A Gaussian has no mass in float64 twelve standard deviations away.
    inner, outer = max(low, -12.0), max(low, 0.0) + 12.0
    found = quad(lambda z: (1 + spread * z) ** power * np.exp(-0.5 * z**2), inner, outer, epsabs=0, epsrel=1e-11)[0]
    return float(found / np.sqrt(2 * np.pi) + ndtr(low) - ndtr(begin)) / float(ndtr(-begin))


def _power_integral(power: float, low: float, high: float) -> float:
    """∫ t^power dt from low to high."""
    if power == -1:
        return float(np.log(high / low))
    return float((high ** (power + 1) - low ** (power + 1)) / (power + 1))
