"""What figures draw of an audit: its curve, the densities of its scores, and risks beside gradient norms."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..attacks.membership.audit import Audit
from ..errors import InputError
from ..stats.clusters import cell_sums, two_way
from ..stats.intervals import Estimate, Spread, check_level
from ..stats.roc import Floats
from .shadow_scores import ArmScores

VERTICES, BINS, SHOWN = 500, 60, 1000


def curve_of(audit: Audit) -> dict[str, list[float]]:
    """Vertices of the curve, half of them spread evenly over the logarithm of the false-positive rate."""
    curve = audit.roc()
    if len(curve.fpr) <= VERTICES:
        return {"fpr": curve.fpr.tolist(), "tpr": curve.tpr.tolist()}
    smallest = max(1 / curve.negatives, 1e-6)
    wanted = np.unique(np.concatenate([np.linspace(0, 1, VERTICES // 2), np.geomspace(smallest, 1, VERTICES // 2)]))
    # The last vertex whose rate does not exceed what is wanted, so that nothing is interpolated.
    chosen = np.unique(np.searchsorted(curve.fpr, wanted, side="right") - 1)
    return {"fpr": curve.fpr[chosen].tolist(), "tpr": curve.tpr[chosen].tolist()}


def histogram_of(audit: Audit) -> dict[str, list[float]]:
    """Densities of the scores under both hypotheses; those beyond the 0.1 % quantiles are in the outermost bins."""
    both = np.concatenate([audit.positive.scores, audit.negative.scores])
    low, high = np.quantile(both, [0.001, 0.999])
    edges = np.linspace(low, max(high, low + 1e-9), BINS + 1)
    parts = {
        name: np.histogram(np.clip(scores, edges[0], edges[-1]), bins=edges, density=True)[0].tolist()
        for name, scores in (("forgotten", audit.positive.scores), ("never", audit.negative.scores))
    }
    return {"edges": edges.tolist(), **parts}


def risk_of(audit: Audit, scores: ArmScores) -> dict[str, Any]:
    """Gradient norms of forgotten points beside their scores, at most so many of them, evenly spread; and the rank
    correlation of all.
    """
    models, points = np.nonzero(scores.forgotten)
    found = {(int(scores.groups[m]), int(p)): float(e) for m, p, e in zip(models, points, scores.energy, strict=True)}
    positive = audit.positive
    shadows = audit.shadows[positive.shadows]
    norms = np.sqrt([found[int(s), int(p)] for s, p in zip(shadows, positive.points, strict=True)])
    known = np.flatnonzero(np.isfinite(norms))
    shown = known[:: max(1, -(-len(known) // SHOWN))]
    return {
        "gradient_norm": norms[shown].tolist(),
        "score": positive.scores[shown].tolist(),
        "correlation": risk_correlation(audit, norms),
    }


def risk_correlation(audit: Audit, norms: NDArray[np.float64]) -> dict[str, float] | None:
    """Spearman's correlation of the norms of forgotten points, one a positive of the audit, with their scores, with an
    interval over shadows and points; those that are not finite are left out. None where there is nothing to correlate.
    """
    known, positive = np.isfinite(norms), audit.positive
    found = rank_correlation(norms[known], positive.scores[known])
    if found is None or len(audit.shadows) < 2:
        return None
    shape = (len(audit.shadows), audit.points)
    table = cell_sums(found.influence, positive.shadows[known], positive.points[known], shape)
    return asdict(correlation_interval(found.value, two_way([table], refit=audit.refit).spread([1.0])))


@dataclass(frozen=True, eq=False)
class RankCorrelation:
    """Spearman's ρ of two measures and how much each observation moves it, ψ, which sums to 0.

    With midranks a, b in (−½, ½) (the share below, a tie counted as half, less ½), k(u, v) = 1[u < v] + ½ 1[u = v] − ½
    and means over all n observations, C = mean ab, A = mean a², B = mean b²: ρ = C / √(AB), and to first order

        n ψᵢ = (cᵢ − 3C) / √(AB) − ρ/2 · ((aᵢ² + 2 mean_j k(xᵢ, xⱼ) aⱼ − 3A) / A + the same of y),
        cᵢ = aᵢ bᵢ + mean_j k(xᵢ, xⱼ) bⱼ + mean_j k(yᵢ, yⱼ) aⱼ:

    an observation counts itself, and shifts the ranks of those above and below it.
    """

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
