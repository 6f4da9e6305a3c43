"""The bound where noise, gradients within a component and the rescaling act on each coordinate by itself.

With αᵢⱼ = σᵢⱼ²/γⱼ² the signal-to-noise ratio of coordinate j in component i, |R Σᵢ Rᵀ + Σ_g| / |Σ_g| is the product of
the 1 + αᵢⱼ rⱼ², and with ψᵢⱼ = E log(1 + αᵢⱼ rⱼ²) and Δψᵢⱼ = log(1 + αᵢⱼ) − ψᵢⱼ

    I(x; g) ≤ Σ πᵢ (−log πᵢ + ½ Σⱼ ψᵢⱼ),      log ξ_tele/ξ₀ = (1/d) Σ πᵢ Σⱼ Δψᵢⱼ

for floors ξ under the reconstruction of d numbers. log(1 + αt) is concave in t: where E[rⱼ²] = 1, Jensen's inequality
makes every Δψᵢⱼ ≥ 0. And log(1 + αe^y) is convex in y: where E[log rⱼ²] ≥ 0, every Δψᵢⱼ ≤ 0.

For the diagonals of full covariances this bound lies above that of the full form (Hadamard) and is still a bound; it
adds up over coordinates however much they repeat each other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InputError
from .covariance import Array
from .information_bound import label_entropy
from .mixture import mixture_weights
from .monte_carlo import MonteCarlo, mean_of


def diagonal_information_bound(weights: ArrayLike, snr: ArrayLike) -> float:
    """Σ πᵢ (−log πᵢ + ½ Σⱼ log(1 + αᵢⱼ)) in nats, weights (K,), snr (K, m): without teleportation."""
    shares, ratios = _model(weights, snr)
    return label_entropy(shares) + 0.5 * float(shares @ np.log1p(ratios).sum(1))


def sampled_psi(snr: ArrayLike, log_squares: ArrayLike) -> Array:
    """ψᵢⱼ for snr (K, m) as the mean over draws of log rⱼ², shape (draws, m); shape (K, m)."""
    ratios = _ratios(snr)
    drawn = _drawn(log_squares, ratios.shape[1])
    return np.stack([_logs(row, drawn).mean(0) for row in ratios])


def sampled_gain(weights: ArrayLike, snr: ArrayLike, log_squares: ArrayLike) -> MonteCarlo:
    """Σ πᵢ Σⱼ Δψᵢⱼ by the mean over draws of log rⱼ², shape (draws, m), one draw of all coordinates a row.

    The standard error is over draws, so that coordinates may share factors.
    """
    shares, ratios = _model(weights, snr)
    drawn = _drawn(log_squares, ratios.shape[1])
    totals = np.zeros(len(drawn))
    for share, row in zip(shares, ratios, strict=True):
        # One way of rounding on both sides: ratios of 1 gain exactly nothing.
        totals += share * (_logs(row, np.zeros(1)) - _logs(row, drawn)).sum(1)
    return mean_of(totals)


def require_energy_preserving(log_squares: ArrayLike) -> None:
    """Refuse draws of log rⱼ², shape (draws, m), whose mean of rⱼ² is further than 4 standard errors from 1.

    Where this holds Jensen's inequality says that no gain is negative; elsewhere there is no such promise.
    """
    drawn = np.asarray(log_squares, dtype=np.float64)
    squares = np.exp(_drawn(drawn, drawn.shape[-1] if drawn.ndim else 0))
    mean = squares.mean(0)
    error = squares.std(0, ddof=1) / np.sqrt(len(squares))
    wrong = np.flatnonzero(np.abs(mean - 1) > 4 * error + 1e-12)
    if len(wrong):
        j = int(wrong[np.argmax(np.abs(np.log(mean[wrong])))])
        raise InputError(
            f"coordinate {j} has E[r²] = {mean[j]:.4g} ± {error[j]:.2g}: the law does not preserve its energy, and the "
            "bound then promises no gain; subtract log E[r²] from its draws, or report the gain without that promise"
        )


def _logs(snr: Array, log_squares: Array) -> Array:
    """log(1 + α r²), also where α r² overflows."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.logaddexp(0.0, np.log(snr) + log_squares))


def _drawn(log_squares: ArrayLike, count: int) -> Array:
    drawn = np.asarray(log_squares, dtype=np.float64)
    if drawn.ndim != 2 or drawn.shape[1] != count or len(drawn) < 2 or not np.isfinite(drawn).all():
        raise InputError(f"the draws of log r² have shape {drawn.shape}; give at least 2 finite rows of {count}")
    return drawn


def _ratios(snr: ArrayLike) -> Array:
    ratios = np.asarray(snr, dtype=np.float64)
    if ratios.ndim != 2 or not np.isfinite(ratios).all() or (ratios < 0).any():
        raise InputError(
            f"the signal-to-noise ratios have shape {ratios.shape}; "
            "give finite numbers of at least 0, one row a component"
        )
    return ratios


def _model(weights: ArrayLike, snr: ArrayLike) -> tuple[Array, Array]:
    shares, ratios = mixture_weights(weights), _ratios(snr)
    if len(shares) != len(ratios):
        raise InputError(f"there are {len(shares)} weights and {len(ratios)} rows of ratios; give as many")
    return shares, ratios
