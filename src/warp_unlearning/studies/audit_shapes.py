"""What figures draw of an audit: its curve, the densities of its scores, and risks beside gradient norms."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..attacks.membership.audit import Audit
from ..stats.clusters import cell_sums, two_way
from ..stats.rank_correlation import correlation_interval, rank_correlation
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
