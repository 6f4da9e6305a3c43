"""The floor under the error of every reconstruction, from how many nats a noisy gradient holds about its input.

For x in d dimensions and any observation g, H(x|g) = H(x) − I(x; g) and

    ξ = (1/d) E‖x − x̂(g)‖² ≥ (1/2πe) exp(2 H(x|g) / d),

by the Gaussian's maximal entropy, the inequality of the arithmetic and geometric means over the eigenvalues of
Cov(x|g), and Jensen's over g. It is an equality where x given g is Gaussian with the same c·I for every g.

Clean gradients u are modelled as a mixture Σ πᵢ N(μᵢ, diag σᵢ²), and g = R u + ε with ε ~ N(0, diag γ²) and a rescaling
R = diag(r) drawn independently of x; R = I is the channel without teleportation. With αᵢⱼ = σᵢⱼ²/γⱼ²,

    I(x; g) ≤ I(u; g | R) ≤ Σ πᵢ (−log πᵢ + ½ Σⱼ E log(1 + αᵢⱼ rⱼ²)):

the first step gives the attacker R, the second the component. The means do not enter. So floors have the ratio

    log ξ_tele/ξ₀ = (1/d) Σ πᵢ Σⱼ Δψᵢⱼ,     Δψᵢⱼ = log(1 + αᵢⱼ) − E log(1 + αᵢⱼ rⱼ²).

log(1 + αt) is concave in t: where E[rⱼ²] = 1, Jensen's inequality makes every Δψᵢⱼ ≥ 0. And log(1 + αe^y) is convex in
y: where E[log rⱼ²] ≥ 0, every Δψᵢⱼ ≤ 0. The noise is added after the rescaling; noise that is rescaled with the
gradient, R(u + ε), leaves the bound as it is without any rescaling.

For covariances that are not diagonal, the bound of their diagonals lies above that of the full form (Hadamard) and
still holds; it adds up over coordinates however much they repeat each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import e, exp, isfinite, log, pi
from sys import float_info

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InputError

Array = NDArray[np.float64]

# A Gaussian has no mass in float64 beyond so many standard deviations.
_REACH = 10.0
_ENTRIES_AT_ONCE = 1 << 21


@dataclass(frozen=True)
class MonteCarlo:
    """The mean of `draws` independent draws and its standard error."""

    value: float
    standard_error: float
    draws: int


def entropy_floor(entropy: float, *, dimensions: int) -> float:
    """(1/2πe) exp(2H/d), H in nats.

    >>> round(entropy_floor(0.0, dimensions=3) * 2 * pi * e, 9)
    1.0
    """
    return floor_ratio(entropy, dimensions=dimensions) / (2 * pi * e)


def floor_ratio(entropy_gain: float, *, dimensions: int) -> float:
    """The factor exp(2 ΔH / d) by which the floor grows with `entropy_gain` more nats."""
    if isinstance(dimensions, bool) or not isinstance(dimensions, int) or dimensions < 1:
        raise InputError(f"the number of dimensions is {dimensions!r}; give a whole number of at least 1")
    exponent = 2 * entropy_gain / dimensions
    if not isfinite(exponent) or exponent > log(float_info.max):
        raise InputError(
            f"the entropy is {entropy_gain} nats, too many for a floor in {dimensions} dimensions; "
            "give a smaller, finite number"
        )
    return exp(exponent)


def diagonal_information_bound(weights: ArrayLike, snr: ArrayLike) -> float:
    """Σ πᵢ (−log πᵢ + ½ Σⱼ log(1 + αᵢⱼ)) in nats, weights (K,), snr (K, m): the bound without teleportation."""
    shares, ratios = _checked(weights, snr)
    return float(-(shares * np.log(shares)).sum() + 0.5 * (shares @ np.log1p(ratios).sum(1)))


def sampled_gain(weights: ArrayLike, snr: ArrayLike, log_squares: ArrayLike, *, dimensions: int = 1) -> MonteCarlo:
    """(1/d) Σ πᵢ Σⱼ Δψᵢⱼ as the mean over draws of log rⱼ², shape (draws, m), one draw of all coordinates a row.

    The standard error is over draws, so that coordinates may share factors.
    """
    shares, ratios = _checked(weights, snr)
    drawn = np.asarray(log_squares, dtype=np.float64)
    if drawn.ndim != 2 or drawn.shape[1] != ratios.shape[1] or len(drawn) < 2 or not np.isfinite(drawn).all():
        raise InputError(
            f"the draws of log r² have shape {drawn.shape}; give at least 2 finite rows of {ratios.shape[1]}"
        )
    gains = np.zeros(len(drawn))
    for share, row in zip(shares, ratios, strict=True):
        # The same rounding on both sides: ratios of 1 gain exactly nothing.
        gains += share / dimensions * (_log_one_plus(row, np.zeros(1)) - _log_one_plus(row, drawn)).sum(1)
    return MonteCarlo(float(gains.mean()), float(gains.std(ddof=1) / np.sqrt(len(gains))), len(gains))


def log_normal_gain(snr: ArrayLike, spread: float) -> Array:
    """Δψ(α, s) for each α ≥ 0 of `snr` and r² = e^Y, Y ~ N(−s²/2, s²), so that E[r²] = 1; s is `spread`.

    Since E[e^Y − 1] = 0, Δψ = E[p w − log(1 + p w)] with p = α/(1 + α) and w = e^Y − 1: an integrand that is nowhere
    negative, so that small gains keep their digits. The expectation is a trapezoidal sum over z = (Y + s²/2) / s: the
    integrand is analytic for |Im z| < π/s and falls off like a Gaussian, so the error falls exponentially in 1/step.

    >>> round(float(log_normal_gain(5.0, 0.5)), 6)
    0.084145
    """
    ratio = np.asarray(snr, dtype=np.float64)
    wrong = ratio[~(np.isfinite(ratio) & (ratio >= 0))]
    if wrong.size:
        raise InputError(f"a signal-to-noise ratio is {wrong[0]}; they are finite and at least 0")
    if isinstance(spread, bool) or not np.isfinite(spread) or spread <= 0:
        raise InputError(f"spread is {spread}; give the standard deviation of log r², a number above 0")
    # Half the step at which exp(−2π · (π/s) / step) is below float64's rounding.
    step = min(0.25, 0.24 / spread)
    z = step * np.arange(np.floor(-_REACH / step), np.ceil((spread + _REACH) / step) + 1)
    flat = ratio.reshape(-1, 1)
    rows = max(1, _ENTRIES_AT_ONCE // len(z))
    sums = [_integrand(flat[i : i + rows], z, spread).sum(1) for i in range(0, len(flat), rows)]
    return np.asarray(step * np.concatenate([*sums, []]).reshape(ratio.shape))


def _integrand(snr: Array, z: Array, s: float) -> Array:
    """φ(z) (p w − log(1 + p w)) for each α and node."""
    y = s * z - 0.5 * s**2
    share = snr / (1 + snr)
    # φ(z) e^Y is φ(z − s), which does not overflow; for small w its difference to φ(z) would lose digits.
    density, shifted = (np.exp(-0.5 * at**2) / np.sqrt(2 * np.pi) for at in (z, z - s))
    near = share * np.expm1(np.clip(y, -1.0, 1.0))
    far = _log_one_plus(snr, y) - _log_one_plus(snr, np.zeros(1))
    return np.asarray(
        np.where(np.abs(y) < 1, density * (near - np.log1p(near)), share * (shifted - density) - density * far)
    )


def _log_one_plus(snr: Array, log_squares: Array) -> Array:
    """log(1 + α r²), also where α r² overflows."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.logaddexp(0.0, np.log(snr) + log_squares))


def _checked(weights: ArrayLike, snr: ArrayLike) -> tuple[Array, Array]:
    shares, ratios = np.asarray(weights, dtype=np.float64), np.asarray(snr, dtype=np.float64)
    if shares.ndim != 1 or not (shares > 0).all() or abs(float(shares.sum()) - 1) > 1e-6:
        raise InputError(f"the mixture weights are {shares.tolist()}; they must be above 0 and add up to 1")
    if ratios.ndim != 2 or len(ratios) != len(shares) or not np.isfinite(ratios).all() or (ratios < 0).any():
        raise InputError(
            f"the signal-to-noise ratios have shape {ratios.shape} for {len(shares)} mixture weights; "
            "give finite numbers of at least 0, one row a component"
        )
    return shares / shares.sum(), ratios
