"""What the attacks on a pair of models found: a row for each, the strongest of them, and verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...data.files import to_json
from ...stats.area import area_difference, independent_area, strength_of
from ...stats.exchange import holm
from ...stats.intervals import Estimate
from ...stats.reading import Verdict, read_area
from ...stats.roc import RATES, Influence, Rate, area_influence, independent_rate, roc
from .pair_attacks import Attack, Floats

SCHEMA_VERSION = 1
Positions = NDArray[np.int64]


@dataclass(frozen=True)
class AttackRow:
    """One attack: forgotten examples against non-members. `rates` are the larger of both tails'.

    `p_value` is that of "both score alike", `adjusted_p` the same after Holm's correction over all rows. `retrained` is
    the area of the same attack on the original and a retrained model, `beyond` how much further from ½, to whichever
    side, the audited area lies, and `null` the area on two retrained models: each where such models were given.
    """

    attack: str
    step: str
    needs: str
    auc: Estimate
    p_value: float
    adjusted_p: float
    verdict: Verdict
    balanced_accuracy: float
    rates: tuple[Rate, ...]
    retrained: Estimate | None = None
    beyond: Estimate | None = None
    null: Estimate | None = None

    @property
    def name(self) -> str:
        """The attack with its pre-step."""
        return str(Attack(self.attack, self.step, self.needs))

    @property
    def strength(self) -> Estimate:
        """max(AUC, 1 − AUC) with the interval that the area's implies."""
        return strength_of(self.auc)


@dataclass(frozen=True, eq=False)
class PairAudit:
    """Every attack on one pair of models that needs no shadow model.

    A row's verdict is "leak" if its adjusted p-value is below 1 − level and its interval excludes ½; "no leak found" if
    the interval contains ½ and lies within ½ ± `margin`; else "inconclusive". `verdict` is "leak" if a row's is, "no
    leak found" if all rows' are, else "inconclusive". `beyond_retrained` is the same question against a retrained
    model, None without one. `strongest` is the row furthest from ½; its interval holds for all attacks at once.
    `scores` are those of all candidates by attack: of the forgotten examples, whose positions in the forget set are
    `forget_index`, then of the non-members, whose positions in the test set are `test_index`.
    """

    rows: tuple[AttackRow, ...]
    strongest: str
    strongest_strength: Estimate
    verdict: Verdict
    beyond_retrained: Verdict | None
    not_tried: Mapping[str, str]
    counts: Mapping[str, int]
    digests: Mapping[str, str]
    settings: Mapping[str, Any]
    threat: tuple[str, ...]
    notes: tuple[str, ...]
    level: float
    margin: float
    scores: Mapping[Attack, Floats] = field(repr=False)
    forget_index: Positions = field(repr=False)
    test_index: Positions = field(repr=False)

    def row(self, name: str) -> AttackRow:
        """The row of that name, such as "update alignment after span"."""
        return next(row for row in self.rows if row.name == name)

    def as_json(self) -> dict[str, Any]:
        """Plain data with the version of its form; numbers that are not finite are None."""
        apart = ("rows", "scores", "forget_index", "test_index")
        about = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in apart}
        about["strongest_strength"] = asdict(self.strongest_strength)
        rows = [{"name": row.name, **asdict(row), "rates": [r.summary() for r in row.rates]} for row in self.rows]
        found: dict[str, Any] = to_json({"schema_version": SCHEMA_VERSION, "kind": "pair", **about, "rows": rows})
        return found


def rows_of(
    scores: Mapping[Attack, Floats],
    positives: int,
    *,
    retrained: Mapping[Attack, Floats] | None,
    null: Mapping[Attack, Floats] | None,
    level: float,
    margin: float,
) -> tuple[AttackRow, ...]:
    """Rows from scores whose first `positives` are of forgotten examples."""
    adjusted = holm([area_p_value(s[:positives], s[positives:]) for s in scores.values()])
    return tuple(
        _row(attack, found, positives, float(p), retrained, null, level, margin)
        for (attack, found), p in zip(scores.items(), adjusted, strict=True)
    )


def strongest_of(
    rows: Sequence[AttackRow], scores: Mapping[Attack, Floats], positives: int, *, level: float
) -> Estimate:
    """The strength of the strongest row. The ends are the largest lower and upper ends of all rows, at a level that
    holds for all at once (Bonferroni's): any of them may be the strongest in truth. Rows that rank nothing do not
    count.
    """
    corrected = 1 - (1 - level) / len(rows)
    found = [
        strength_of(independent_area(s[:positives], s[positives:], level=corrected))
        for s in scores.values()
        if np.ptp(s) > 0
    ]
    best = max(row.strength.value for row in rows)
    if not found:
        return Estimate(best, 0.5, 1.0)
    return Estimate(best, max(e.low for e in found), max(e.high for e in found))


def overall(rows: Sequence[AttackRow]) -> Verdict:
    """A leak if one row says so; none found if all rows say so; else open."""
    if any(row.verdict == "leak" for row in rows):
        return "leak"
    return "no leak found" if all(row.verdict == "no leak found" for row in rows) else "inconclusive"


def overall_beyond(rows: Sequence[AttackRow], *, margin: float) -> Verdict | None:
    """The same against a retrained model, by simultaneous intervals."""
    found = [row.beyond for row in rows if row.beyond is not None]
    if not found:
        return None
    if any(estimate.low > 0 for estimate in found):
        return "leak"
    return "no leak found" if all(estimate.high <= margin for estimate in found) else "inconclusive"


def area_p_value(positive: Floats, negative: Floats) -> float:
    """The two-sided p-value of "both sets are drawn from one distribution": the Mann-Whitney test, with ties."""
    if np.ptp(np.concatenate([positive, negative])) == 0:
        return 1.0
    # Takes a second to import.
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(positive, negative, alternative="two-sided").pvalue)


def _row(
    attack: Attack,
    scores: Floats,
    positives: int,
    adjusted: float,
    retrained: Mapping[Attack, Floats] | None,
    null: Mapping[Attack, Floats] | None,
    level: float,
    margin: float,
) -> AttackRow:
    forgotten, never = scores[:positives], scores[positives:]
    auc = independent_area(forgotten, never, level=level)
    reference = None if retrained is None else retrained.get(attack)
    apart = None if null is None else null.get(attack)
    verdict = read_area(auc, margin=margin).verdict
    return AttackRow(
        attack.name,
        attack.step,
        attack.needs,
        auc,
        area_p_value(forgotten, never),
        adjusted,
        "inconclusive" if verdict == "leak" and adjusted >= 1 - level else verdict,
        max(roc(forgotten, never).balanced_accuracy, roc(-forgotten, -never).balanced_accuracy),
        tuple(_rate(forgotten, never, fpr, level) for fpr in RATES),
        None if reference is None else independent_area(reference[:positives], reference[positives:], level=level),
        None if reference is None else _beyond(scores, reference, positives, level, len(retrained or ())),
        None if apart is None else independent_area(apart[:positives], apart[positives:], level=level),
    )


def _rate(forgotten: Floats, never: Floats, fpr: float, level: float) -> Rate:
    """The larger rate of both tails, at a level corrected for there being two: an attacker may call low scores
    forgotten as well as high ones.
    """
    both = 1 - (1 - level) / 2
    up, down = (independent_rate(sign * forgotten, sign * never, fpr, level=both) for sign in (1, -1))
    if up.tpr is None or down.tpr is None:
        return up
    larger = max(up.tpr, down.tpr, key=lambda estimate: estimate.value)
    return Rate(fpr, Estimate(larger.value, larger.low, max(up.tpr.high, down.tpr.high)), up.negatives)


def _beyond(scores: Floats, reference: Floats, positives: int, level: float, rows: int) -> Estimate:
    """|AUC − ½| of the audited scores less that of the reference; the interval holds for so many rows at once."""
    one, other = (_leaning_up(area_influence(s[:positives], s[positives:])) for s in (scores, reference))
    return area_difference(one, other, level=1 - (1 - level) / rows)


def _leaning_up(found: Influence) -> Influence:
    """The same area, or that of the scores turned around where it is below ½."""
    return found if found.value >= 0.5 else Influence(1 - found.value, -found.positive, -found.negative)
