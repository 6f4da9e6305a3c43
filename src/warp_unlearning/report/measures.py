"""The numbers of a results file: a value with its interval, a rate, a score; and how they are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from ..stats import intervals
from ..stats.reading import Verdict, read_area, strength_of
from .fields import Field

VERDICTS: tuple[Verdict, ...] = ("leak", "no leak found", "inconclusive")
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Estimate:
    """A value and the ends of its 95 % interval; each None where it is unknown."""

    value: float | None
    low: float | None
    high: float | None

    @property
    def strength(self) -> Estimate:
        """max(v, 1 − v) with the interval that this one implies; its lower end is ½ where this one contains ½."""
        if self.value is None or self.low is None or self.high is None:
            return Estimate(None if self.value is None else max(self.value, 1 - self.value), None, None)
        found = strength_of(intervals.Estimate(self.value, self.low, self.high))
        return Estimate(found.value, found.low, found.high)

    def mapped(self, scale: float, offset: float = 0.0) -> Estimate:
        """The line scale · x + offset of value and interval, whose ends change places where `scale` is negative."""
        value, low, high = (None if x is None else scale * x + offset for x in (self.value, self.low, self.high))
        return Estimate(value, low, high) if scale >= 0 else Estimate(value, high, low)


@dataclass(frozen=True)
class Written:
    """A number as text, and its interval as text; either may be empty."""

    value: str
    interval: str = ""

    def __str__(self) -> str:
        return f"{self.value} {self.interval}".strip()


@dataclass(frozen=True)
class Rate:
    """The true-positive rate at a false-positive rate; `tpr` is None where the negatives cannot resolve it."""

    fpr: float
    resolved: bool
    negatives: int
    tpr: Estimate | None


@dataclass(frozen=True)
class Score:
    """What one attack scored on forgotten against never-seen examples."""

    auc: Estimate
    rates: tuple[Rate, ...]
    verdict: Verdict
    direction: str
    positives: int
    negatives: int
    notes: tuple[str, ...]

    def rate(self, fpr: float) -> Rate | None:
        """The rate at `fpr`, None where the file has none."""
        return next((rate for rate in self.rates if abs(rate.fpr - fpr) < 1e-9), None)


def read_estimate(field: Field) -> Estimate:
    """`{"value", "low", "high"}`, each a number or null, in order."""
    found = Estimate(field["value"].maybe_number(), field["low"].maybe_number(), field["high"].maybe_number())
    if found.low is not None and found.high is not None and found.low > found.high:
        field.wrong("an interval whose lower end is not above its upper end")
    return found


def read_rate(field: Field) -> Rate:
    """`{"fpr", "resolved", "negatives", "tpr"}`."""
    resolved, tpr = field["resolved"].flag(), field["tpr"].maybe(read_estimate)
    return Rate(field["fpr"].number(), resolved, field["negatives"].count(), tpr if resolved else None)


def read_verdict(field: Field) -> Verdict:
    """One of the three verdicts."""
    return cast(Verdict, field.one_of(*VERDICTS))


def read_score(field: Field) -> Score:
    """A score with its rates and its verdict."""
    return Score(
        read_estimate(field["auc"]),
        tuple(read_rate(rate) for rate in field["rates"]),
        read_verdict(field["verdict"]),
        field["direction"].text(),
        field["positives"].count(),
        field["negatives"].count(),
        field["notes"].texts(),
    )


def reading(area: Estimate | None) -> Verdict | None:
    """What an area and its interval say (`stats.reading`), where the file has no verdict of its own; None where nothing
    was measured.

    >>> reading(Estimate(0.1, 0.05, 0.2)), reading(Estimate(0.5, 0.4, 0.6))
    ('leak', 'inconclusive')
    """
    if area is None or area.value is None:
        return None
    if area.low is None or area.high is None:
        return "inconclusive"
    return read_area(intervals.Estimate(area.value, area.low, area.high)).verdict


def worst(verdicts: Sequence[Verdict | None]) -> Verdict | None:
    """A leak if any is; else inconclusive if any is; None where there is none at all.

    >>> worst(["no leak found", None, "inconclusive"])
    'inconclusive'
    """
    found = [verdict for verdict in verdicts if verdict is not None]
    return next((v for v in ("leak", "inconclusive", "no leak found") if v in found), None)


def written(estimate: Estimate | None, *, digits: int = 3, scale: float = 1.0, unit: str = "") -> Written:
    """A number with its interval; what is unknown is said in words.

    >>> str(written(Estimate(0.5, 0.4, 0.61), scale=100, digits=0, unit=" %"))
    '50 % [40, 61]'
    """
    if estimate is None or estimate.value is None:
        return Written(NOT_MEASURED)
    value = f"{_fixed(scale * estimate.value, digits)}{unit}"
    if estimate.low is None and estimate.high is None:
        return Written(value, "[interval unknown]")
    ends = ("unbounded" if end is None else _fixed(scale * end, digits) for end in (estimate.low, estimate.high))
    return Written(value, f"[{', '.join(ends)}]")


def written_rate(rate: Rate | None) -> Written:
    """A rate in percent with its interval, or "unresolved" with how many negatives there are."""
    if rate is None:
        return Written(NOT_MEASURED)
    if not rate.resolved:
        return Written("unresolved", f"({rate.negatives:,} negatives)")
    return written(rate.tpr, digits=1, scale=100, unit=" %")


def _fixed(number: float, digits: int) -> str:
    text = f"{number:,.{digits}f}"
    return (text[1:] if float(text.replace(",", "")) == 0 and text.startswith("-") else text).replace("-", "−")
