"""How many shadows an audit needs, and how long they take.

With S shadows in complementary pairs, P points, K forget sets of each shadow and a share h of its training half in
them,

    positives n₊ = h P S/2,    cells of negatives n₀ = P S/2,    negatives n₋ = K n₀,

and the K siblings of a cell, correlated ρ, are worth as much as 1/d independent ones each, d = ρ + (1−ρ)/K. Then

    area, at ½ where it is widest:   variance = 2 · (1/n₊ + d/n₀) / 12,
    rate t at false-positive rate α: variance = 1.25 · (t(1−t)/n₊ + r² α(1−α) d/n₀),

r = φ(Φ⁻¹(t)) / φ(Φ⁻¹(α)) the slope of a curve of two normals through (α, t). The factors 2 and 1.25 are what scores
of a point owe to the fits they share, measured on simulated audits. Shadows that move many points together add
(spread²)/S; a pilot tells spread² = S · `Audit.spread().together`. A rate is resolved from 10/α negatives on.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp, inf
from typing import Literal

from ..errors import InputError
from .clusters import combined
from .intervals import Spread, check_level, normal_beyond
from .roc import RESOLUTION

FEWEST, MOST = 4, 1_000_000


@dataclass(frozen=True)
class Plan:
    """`half_width`: that of the interval with so many shadows; `limit`: what asked for that many."""

    shadows: int
    models: int
    positives: int
    negatives: int
    negatives_needed: int
    half_width: float
    hours: float
    limit: Literal["resolution", "width", "fits"]

    def __str__(self) -> str:
        return (
            f"{self.shadows} shadows, {self.models} unlearned models, {self.negatives:,} negatives"
            f" ({self.negatives_needed:,} needed), half width {self.half_width:.4f}, {self.hours:.1f} h;"
            f" set by {self.limit}"
        )


def plan(
    *,
    fpr: float,
    half_width: float,
    points: int,
    forget_sets: int,
    training_seconds: float,
    unlearning_seconds: float,
    jobs: int = 1,
    tpr: float | None = None,
    share: float = 1.0,
    sibling_correlation: float = 0.5,
    shadow_spread: float = 0.0,
    level: float = 0.95,
    least: int = 16,
) -> Plan:
    """The fewest shadows that resolve `fpr` and keep the interval within ± `half_width`, and their hours.

    The interval is that of the area, or, where `tpr` is given, of a true-positive rate of about that at `fpr`.
    Shadows also make the attack: with `least` of them, whatever the points, a point is fitted on least/2 − 1. Of two
    normals 1.5 apart, an area of 0.86, 8 shadows find 0.82, 16 find 0.84 and 64 find 0.85.
    `training_seconds` for each shadow, `unlearning_seconds` for each of its `forget_sets` unlearned models, `jobs` at
    once.
    """
    check_level(level)
    if not 0 < fpr < 1 or not half_width > 0:
        raise InputError(f"fpr={fpr}, half_width={half_width}; a rate between 0 and 1 and a positive width are needed")
    if min(points, forget_sets, jobs) < 1:
        raise InputError(f"points={points}, forget_sets={forget_sets}, jobs={jobs}; each must be at least 1")
    if tpr is not None and not 0 < tpr < 1:
        raise InputError(f"tpr={tpr}; it must lie between 0 and 1")
    if not 0 < share <= 1 or not 0 <= sibling_correlation <= 1:
        raise InputError(f"share={share}, sibling_correlation={sibling_correlation}; give (0, 1] and [0, 1]")
    if round(share * (points // 2)) < forget_sets:
        raise InputError(
            f"{forget_sets} forget sets from {share} of the {points // 2} points a shadow trains on; they are disjoint "
            "and each needs a point: ask for fewer, or audit more points"
        )
    if least < FEWEST:
        raise InputError(f"least={least}; an audit needs at least {FEWEST} shadows")
    for name, value in (("training", training_seconds), ("unlearning", unlearning_seconds), ("spread", shadow_spread)):
        if not 0 <= value < inf:
            raise InputError(f"{name} is {value}; seconds and the spread of shadows are finite numbers from 0 on")
    siblings = sibling_correlation + (1 - sibling_correlation) / forget_sets

    def spread(shadows: int) -> Spread:
        cells = points * shadows / 2
        if tpr is None:
            apart = 2 * (1 / (share * cells) + siblings / cells) / 12
        else:
            false = roc_slope(tpr, fpr) ** 2 * fpr * (1 - fpr) * siblings / cells
            apart = 1.25 * (tpr * (1 - tpr) / (share * cells) + false)
        return combined(float(apart), shadow_spread**2 / shadows, rows=shadows, columns=max(points, 2))

    needed = ceil(RESOLUTION / fpr)
    resolved = 2 * ceil(needed / (points * forget_sets))
    if resolved > MOST:
        raise InputError(
            f"a false-positive rate of {fpr} needs {needed:,} negatives, more than {MOST:,} shadows with {points}"
            " points give; ask for a larger rate or audit more points"
        )
    low, high = FEWEST // 2, MOST // 2
    if spread(MOST).reach(level) > half_width:
        raise InputError(
            f"a half width of {half_width} is out of reach with {points} points and fewer than {MOST:,} shadows;"
            " ask for less or audit more points"
        )
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if spread(2 * middle).reach(level) <= half_width else (middle + 1, high)
    shadows = max(resolved, 2 * low, least + least % 2)
    limit: Literal["resolution", "width"] = "resolution" if resolved > 2 * low else "width"
    return Plan(
        shadows=shadows,
        models=shadows * forget_sets,
        positives=round(share * points * shadows / 2),
        negatives=points * shadows // 2 * forget_sets,
        negatives_needed=needed,
        half_width=spread(shadows).reach(level),
        hours=shadows * (training_seconds + forget_sets * unlearning_seconds) / jobs / 3600,
        limit="fits" if max(resolved, 2 * low) < shadows else limit,
    )


def roc_slope(tpr: float, fpr: float) -> float:
    """∂TPR/∂FPR at a point of the curve of two normal distributions of one spread: the ratio of their densities."""
    return exp((normal_beyond(fpr) ** 2 - normal_beyond(tpr) ** 2) / 2)
