"""The gain of a log-normal rescaling that keeps the mean energy: r² = exp(Y), Y ~ N(−s²/2, s²), so that E[r²] = 1.

For a coordinate of signal-to-noise ratio α,

    Δψ(α, s) = log(1 + α) − E log(1 + α e^Y) ≥ 0.

Expectations are trapezoidal sums over z = (Y + s²/2) / s. The integrand is analytic for |Im z| < π/s and falls off like
a Gaussian, so the error falls exponentially in 1/step; Gauss-Hermite nodes spread as the root of their number and
would need about s² times as many. Each sum is compared with one of twice the step, and the difference returned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InputError
from .information import Array

# A Gaussian has no mass in float64 beyond so many standard deviations.
_REACH = 10.0
_ENTRIES_AT_ONCE = 1 << 21


@dataclass(frozen=True, eq=False)
class Quadrature:
    """Integrals, and the largest difference to those with half as many nodes."""

    values: Array
    error: float
    nodes: int


def log_normal_gain(snr: ArrayLike, spread: float) -> Quadrature:
    """Δψ(α, s) for each α ≥ 0 of `snr`, s = `spread` the standard deviation of log r².

    Since E[e^Y − 1] = 0, Δψ = E[p w − log(1 + p w)] with p = α/(1 + α) and w = e^Y − 1: an integrand that is nowhere
    negative, so that small gains keep their digits.

    >>> round(float(log_normal_gain(5.0, 0.5).values), 6)
    0.084145
    """
    ratio, s = _checked(snr, spread)
    # Half the step at which exp(−2π · (π/s) / step) is below float64's rounding.
    step = min(0.25, 0.24 / s)
    z = step * np.arange(np.floor(-_REACH / step), np.ceil((s + _REACH) / step) + 1)
    flat = ratio.reshape(-1)
    fine, coarse = np.empty_like(flat), np.empty_like(flat)
    rows = max(1, _ENTRIES_AT_ONCE // len(z))
    for begin in range(0, len(flat), rows):
        part = slice(begin, begin + rows)
        terms = _integrand(flat[part, None], z, s) * step
        fine[part], coarse[part] = terms.sum(1), 2 * terms[:, ::2].sum(1)
    return Quadrature(fine.reshape(ratio.shape), float(np.abs(fine - coarse).max(initial=0.0)), len(z))


def small_spread_gain(snr: ArrayLike, spread: float) -> Array:
    """The expansion Δψ ≈ ½ p² (e^{s²} − 1), p = α/(1 + α), for s ≪ 1. It is no bound: it lies above Δψ for small s.

    With w = e^Y − 1, E[w³] = 3s⁴ + O(s⁶) = E[w⁴] + O(s⁶), though E|w|³ is of order s³. So the error is of order s⁴:
    Δψ less the expansion is −p³ (1 − ¾p) s⁴ + O(s⁶).
    """
    ratio, s = _checked(snr, spread)
    return np.asarray(0.5 * (ratio / (1 + ratio)) ** 2 * np.expm1(s**2))


def _integrand(snr: Array, z: Array, s: float) -> Array:
    """φ(z) (p w − log(1 + p w)) for each α and node."""
    y = s * z - 0.5 * s**2
    share = snr / (1 + snr)
    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    shifted = np.exp(-0.5 * (z - s) ** 2) / np.sqrt(2 * np.pi)
    near = share * np.expm1(np.clip(y, -1.0, 1.0))
    with np.errstate(divide="ignore"):
        log_snr = np.log(snr)
    far = np.logaddexp(0.0, log_snr + y) - np.logaddexp(0.0, log_snr)
    # φ(z) e^Y is φ(z − s), which does not overflow; for small w its difference to φ(z) would lose digits.
    return np.asarray(
        np.where(np.abs(y) < 1, density * (near - np.log1p(near)), share * (shifted - density) - density * far)
    )


def _checked(snr: ArrayLike, spread: float) -> tuple[Array, float]:
    ratio = np.asarray(snr, dtype=np.float64)
    wrong = ratio[~(np.isfinite(ratio) & (ratio >= 0))]
    if wrong.size:
        raise InputError(f"a signal-to-noise ratio is {wrong[0]}; they are finite and at least 0")
    if isinstance(spread, bool) or not np.isfinite(spread) or spread <= 0:
        raise InputError(f"spread is {spread}; give the standard deviation of log r², a number above 0")
    return ratio, float(spread)
