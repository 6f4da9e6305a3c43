"""A gate for audits: does what an attacker achieves stay below thresholds? Yes, no, or too little data to say.

A threshold holds if the upper ends of the intervals of all attacks are below it: that is a test at the audit's level,
without correction, since all must pass. It does not hold if the lower end of one is above it, at the level corrected
for the number of attacks. Everything between is inconclusive, and never a pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from scipy.special import expit, logit

from ..errors import InputError
from ..stats.tails import normal_beyond

Answer = Literal["holds", "does not hold", "inconclusive"]


@dataclass(frozen=True)
class Thresholds:
    """What is asked: at most this max(AUC, 1 − AUC); at most this far beyond a retrained model; at most the
    true-positive rate `tpr` at the false-positive rate `fpr`.
    """

    auc: float | None = None
    beyond: float | None = None
    tpr: float | None = None
    fpr: float = 0.01


@dataclass(frozen=True)
class Answered:
    """One threshold: what it bounds, the bound, and the answer with its reason."""

    what: str
    bound: float
    answer: Answer
    reason: str


def check_audit(audit: Mapping[str, Any], thresholds: Thresholds) -> tuple[Answered, ...]:
    """An answer to every threshold that is set."""
    for name, bound, least in (("AUC", thresholds.auc, 0.5), ("excess", thresholds.beyond, 0.0)):
        if bound is not None and not least <= bound <= 1:
            raise InputError(f"the largest {name} is {bound}; it must lie between {least} and 1")
    if thresholds.tpr is not None and not 0 <= thresholds.tpr <= 1:
        raise InputError(f"the largest true-positive rate is {thresholds.tpr}; it must lie between 0 and 1")
    answers = []
    if thresholds.auc is not None:
        answers.append(_area(audit, thresholds.auc))
    if thresholds.beyond is not None:
        answers.append(_beyond(audit["verdict"]["evidence"], thresholds.beyond))
    if thresholds.tpr is not None:
        answers.append(_rate(audit, thresholds.tpr, thresholds.fpr))
    if not answers:
        raise InputError("no threshold was given; give at least one of --max-auc, --max-beyond and --max-tpr")
    return tuple(answers)


def worst(answers: Sequence[Answered]) -> Answer:
    """No answer may hide another: one that does not hold, then one that is inconclusive, decides."""
    for answer in ("does not hold", "inconclusive"):
        if any(found.answer == answer for found in answers):
            return answer
    return "holds"


def _area(audit: Mapping[str, Any], bound: float) -> Answered:
    what = "max(AUC, 1 - AUC) of every attack on the new model"
    rows = [row for row in audit["rows"] if row["needs"].startswith("new")]
    if not rows:
        return Answered(what, bound, "inconclusive", "nothing was compared")
    highest, lowest = max(rows, key=_upper), max(rows, key=_lower)
    if _lower(lowest) > bound:
        return Answered(what, bound, "does not hold", f"{lowest['name']}: at least {_lower(lowest):.3f}")
    reason = f"{highest['name']}: at most {_upper(highest):.3f}"
    return Answered(what, bound, "holds" if _upper(highest) <= bound else "inconclusive", reason)


def _upper(row: Mapping[str, Any]) -> float:
    return max(float(row["auc"]["high"]), 1 - float(row["auc"]["low"]))


def _lower(row: Mapping[str, Any]) -> float:
    return max(float(row["auc"]["low"]), 1 - float(row["auc"]["high"]))


def _beyond(evidence: Sequence[Mapping[str, Any]], bound: float) -> Answered:
    what = "excess of |AUC - 1/2| over a retrained model"
    known = [e for e in evidence if e["needs"].startswith("both")]
    if not known:
        return Answered(what, bound, "inconclusive", "the audit has no retrained model to compare with")
    lowest = max(known, key=lambda e: float(e["deviation"]["low"]))
    highest = max(known, key=lambda e: float(e["deviation"]["high"]))
    if lowest["deviation"]["low"] > bound:
        reason = f"{lowest['attack']}: at least {lowest['deviation']['low']:.3f}"
        return Answered(what, bound, "does not hold", reason)
    reason = f"{highest['attack']}: at most {highest['deviation']['high']:.3f}"
    return Answered(what, bound, "holds" if highest["deviation"]["high"] <= bound else "inconclusive", reason)


def _rate(audit: Mapping[str, Any], bound: float, fpr: float) -> Answered:
    what = f"true-positive rate at {100 * fpr:g} % false positives"
    offered = [rate["fpr"] for row in audit["rows"][:1] for rate in row["rates"]]
    if fpr not in offered:
        raise InputError(f"the audit has no rate at a false-positive rate of {fpr}; it has {offered}")
    rates = [(row["name"], rate) for row in audit["rows"] for rate in row["rates"] if rate["fpr"] == fpr]
    open_ones = [rate for _, rate in rates if not rate["resolved"]]
    if open_ones:
        reason = f"{open_ones[0]['negatives']} examples never seen cannot resolve it; {round(10 / fpr):,} are needed"
        return Answered(what, bound, "inconclusive", reason)
    for name, rate in rates:
        low = _corrected_low(rate["tpr"], float(audit["verdict"]["level"]), len(rates))
        if low > bound:
            return Answered(
                what, bound, "does not hold", f"{name}: at least {low:.3f}, corrected for {len(rates)} attacks"
            )
    name, highest = max(rates, key=lambda pair: float(pair[1]["tpr"]["high"]))
    high = float(highest["tpr"]["high"])
    return Answered(what, bound, "holds" if high <= bound else "inconclusive", f"{name}: at most {high:.3f}")


def _corrected_low(rate: Mapping[str, float], level: float, rows: int) -> float:
    """The lower end at a level that holds for so many rows at once: the reach of the given one on the logit scale,
    lengthened by the ratio of the normal quantiles.
    """
    value, low = float(rate["value"]), float(rate["low"])
    if not 0 < low < value < 1:
        return low
    longer = normal_beyond((1 - level) / 2 / rows) / normal_beyond((1 - level) / 2)
    return float(expit(logit(value) - longer * (logit(value) - logit(low))))
