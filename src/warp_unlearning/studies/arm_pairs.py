"""What attackers who hold the weights of both models find of an arm, over the pairs of models that were attacked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..stats.intervals import mean
from ..stats.paired_share import paired_reduction
from ..stats.reading import strength_of
from .pair_means import mean_area, mean_rates, share_mean
from .shadow_scores import ArmScores

GRADIENT = "gradient difference"


def gradient_test(scores: ArmScores, base: ArmScores | None) -> dict[str, Any] | None:
    """The gradient-difference test over the pairs (`pair_means`), how much lower its area is than the base's, and the
    share of the base's advantage that is gone.
    """
    rows = [row for pair in scores.pairs for row in pair["rows"] if row["name"] == GRADIENT]
    if not rows:
        return None
    return {
        "auc": mean_area(rows),
        "pairs": len(rows),
        "rates": mean_rates(rows),
        "difference": None if base is None else gradient_difference(scores, base),
        "reduction": None if base is None else gradient_reduction(scores, base),
    }


def gradient_difference(scores: ArmScores, base: ArmScores) -> dict[str, float] | None:
    """How much lower the gradient-difference test's mean area is than the base's, with Student's interval over the
    pairs of models that both have; None below two of them. An area whose mean is below ½ is turned around.
    """
    before, after = _turned_areas(scores, base)
    return asdict(mean(before - after)) if len(before) > 1 else None


def gradient_reduction(scores: ArmScores, base: ArmScores) -> dict[str, float] | None:
    """The share of the gradient-difference test's mean advantage over guessing that is gone, paired over the pairs of
    models that both have; an area whose mean is below ½ is turned around. None below two of them, and where the base's
    advantage is not distinguishable from 0.
    """
    found = paired_reduction(*_turned_areas(scores, base))
    return None if found is None else asdict(found)


def strongest_attack(scores: ArmScores) -> dict[str, Any] | None:
    """The attack whose mean AUC over the pairs is furthest from ½, with an interval that holds for all attacks at once:
    of one pair the audit's own, of several that of `share_mean`.
    """
    if not scores.pairs:
        return None
    if len(scores.pairs) == 1:
        (pair,) = scores.pairs
        strength = pair["strongest_strength"]
        verdict = "leak" if strength["low"] > 0.5 else "inconclusive"
        return {"attack": pair["strongest"], "strength": strength, "pairs": 1, "verdict": verdict}
    names = [row["name"] for row in scores.pairs[0]["rows"]]
    areas = {
        name: [row["auc"] for pair in scores.pairs for row in pair["rows"] if row["name"] == name] for name in names
    }
    found = {name: strength_of(share_mean(values, level=1 - 0.05 / len(areas))) for name, values in areas.items()}
    best = max(found, key=lambda name: found[name].value)
    verdict = "leak" if found[best].low > 0.5 else "inconclusive"
    return {"attack": best, "strength": asdict(found[best]), "pairs": len(scores.pairs), "verdict": verdict}


def _turned_areas(scores: ArmScores, base: ArmScores) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The areas of the base and of the arm on the same pairs, each arm's turned around where its mean is below ½."""
    ours, theirs = (_areas(arm, GRADIENT) for arm in (scores, base))
    order = sorted(set(ours) & set(theirs))
    both = [np.array([areas[pair] for pair in order], dtype=np.float64) for areas in (theirs, ours)]
    before, after = (areas if not order or areas.mean() >= 0.5 else 1 - areas for areas in both)
    return before, after


def _areas(scores: ArmScores, name: str) -> dict[tuple[int, int], float]:
    """The area of an attack on every pair, by shadow and forget set."""
    found = {pair: _row(rows, name) for pair, rows in zip(scores.paired, scores.pairs, strict=True)}
    return {pair: area for pair, area in found.items() if area is not None}


def _row(pair: Mapping[str, Any], name: str) -> float | None:
    return next((float(row["auc"]["value"]) for row in pair["rows"] if row["name"] == name), None)
