"""Spearman's rank correlation of two measures of the same observations, and how much each observation moves it.

With midranks a, b in (−½, ½) (the share below, a tie counted as half, less ½), k(u, v) = 1[u < v] + ½ 1[u = v] − ½ and
means over all n observations,

    C = mean ab,    A = mean a²,    B = mean b²,    ρ = C / √(AB).

To first order ρ moves by Σ ψᵢ with

    n ψᵢ = (cᵢ − 3C) / √(AB) − ρ/2 · ((aᵢ² + 2 mean_j k(xᵢ, xⱼ) aⱼ − 3A) / A + the same of y),
    cᵢ = aᵢ bᵢ + mean_j k(xᵢ, xⱼ) bⱼ + mean_j k(yᵢ, yⱼ) aⱼ:

an observation counts itself, and shifts the ranks of those above and below it. Sums of ψ over whatever is drawn
together carry the variance of ρ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InputError
from .clusters import Spread, check_level
from .intervals import Estimate
from .roc import Floats


@dataclass(frozen=True, eq=False)
class RankCorrelation:
    """ρ and ψ of every observation, in the order they were given; ψ sums to 0."""

    value: float
    influence: Floats


def rank_correlation(x: ArrayLike, y: ArrayLike) -> RankCorrelation | None:
    """ρ of x and y and its influences; None where either never varies, or below three observations.

    >>> found = rank_correlation([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0])
    >>> round(found.value, 6)
    0.8
    """
    first, second = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 1:
        raise InputError(f"measures of shapes {first.shape} and {second.shape}; give two lists of one length")
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise InputError("a measure is NaN or infinite; leave such observations out")
    if len(first) < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    a, b = _midranks(first), _midranks(second)
    both, apart = float(np.mean(a * b)), (float(np.mean(a * a)), float(np.mean(b * b)))
    value = both / np.sqrt(apart[0] * apart[1])
    shared = a * b + _above(first, b) + _above(second, a) - 3 * both
    own = [r * r + 2 * _above(v, r) - 3 * s for v, r, s in ((first, a, apart[0]), (second, b, apart[1]))]
    moved = shared / np.sqrt(apart[0] * apart[1]) - value / 2 * (own[0] / apart[0] + own[1] / apart[1])
    return RankCorrelation(float(np.clip(value, -1, 1)), np.asarray(moved / len(a), dtype=np.float64))


def correlation_interval(value: float, spread: Spread, *, level: float = 0.95) -> Estimate:
    """An interval for a correlation, symmetric on the scale of artanh so that it stays inside (−1, 1).

    At −1 and 1 no variance is left, and the interval is all there is to be known: [−1, 1].
    """
    check_level(level)
    if not abs(value) < 1:
        return Estimate(value, -1.0, 1.0)
    centre, reach = np.arctanh(value), spread.reach(level) / (1 - value**2)
    return Estimate(value, float(np.tanh(centre - reach)), float(np.tanh(centre + reach)))


def _midranks(values: Floats) -> Floats:
    ranked = np.sort(values)
    below = np.searchsorted(ranked, values, "left") + np.searchsorted(ranked, values, "right")
    return np.asarray(below / (2 * len(values)) - 0.5, dtype=np.float64)


def _above(values: Floats, weights: Floats) -> Floats:
    """For each i the mean over j of k(vᵢ, vⱼ) wⱼ; the weights have mean 0."""
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    sums = np.concatenate([[0.0], np.cumsum(weights[order])])
    left, right = (sums[np.searchsorted(ranked, values, side)] for side in ("left", "right"))
    return np.asarray((sums[-1] - (left + right) / 2) / len(values), dtype=np.float64)
