"""The numbers of a results file: a value with its interval, a rate, a score; and how they are written."""

from __future__ import annotations

from dataclasses import dataclass

from ..stats import intervals, roc
from ..stats.area import strength_of
from .fields import Field

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
        if self.known is None:
            return Estimate(None if self.value is None else max(self.value, 1 - self.value), None, None)
        found = strength_of(self.known)
        return Estimate(found.value, found.low, found.high)

    @property
    def known(self) -> intervals.Estimate | None:
        """The same for the statistics; None where a number is missing."""
        if self.value is None or self.low is None or self.high is None:
            return None
        return intervals.Estimate(self.value, self.low, self.high)

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

    @property
    def known(self) -> roc.Rate:
        """The same for the statistics."""
        return roc.Rate(self.fpr, None if self.tpr is None else self.tpr.known, self.negatives)


@dataclass(frozen=True)
class Score:
    """What one attack scored on forgotten against never-seen examples."""

    auc: Estimate
    rates: tuple[Rate, ...]
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


def read_score(field: Field) -> Score:
    """A score with its rates."""
    return Score(
        read_estimate(field["auc"]),
        tuple(read_rate(rate) for rate in field["rates"]),
        field["positives"].count(),
        field["negatives"].count(),
        field["notes"].texts(),
    )


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
