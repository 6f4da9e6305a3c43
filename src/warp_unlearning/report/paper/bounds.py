"""Claims of the form "differs by at most x": they agree only where the whole interval lies within."""

from __future__ import annotations

from collections.abc import Sequence

from ..measures import Estimate
from .agreement import Cell, shown
from .numbers import PaperNumber


def magnitude(change: Estimate | None) -> Estimate | None:
    """|change|; its interval starts at 0 where that of the change contains 0."""
    if change is None or change.value is None:
        return None
    if change.low is None or change.high is None:
        return Estimate(abs(change.value), None, None)
    ends = sorted((abs(change.low), abs(change.high)))
    return Estimate(abs(change.value), 0.0 if change.low <= 0 <= change.high else ends[0], ends[1])


def spread_of(found: Sequence[Estimate | None]) -> Estimate | None:
    """Largest less smallest. Its interval is from the separate ones: at least the largest lower end less the smallest
    upper end, at most the largest upper end less the smallest lower end.
    """
    values = [e for e in found if e is not None and e.value is not None]
    if len(values) < 2:
        return None
    middle = [e.value for e in values if e.value is not None]
    low = [e.low for e in values if e.low is not None]
    high = [e.high for e in values if e.high is not None]
    if len(low) < len(values) or len(high) < len(values):
        return Estimate(max(middle) - min(middle), None, None)
    return Estimate(max(middle) - min(middle), max(0.0, max(low) - min(high)), max(high) - min(low))


def bound_cell(ours: Estimate | None, paper: PaperNumber | None, *, scale: float = 1.0, digits: int = 3) -> Cell:
    """Ours beside a bound of the paper, or beside a range in which it should lie whole."""
    text = shown(ours, scale=scale, digits=digits)
    if paper is None:
        return Cell(text)
    told = f"{text}; paper {paper}"
    if ours is None or ours.value is None:
        return Cell(told, "not measured")
    if ours.low is None or ours.high is None:
        return Cell(told, "no interval")
    low, high = scale * ours.low, scale * ours.high
    if paper.low <= low and high <= paper.high:
        return Cell(f"{told}, agrees", "agrees")
    if low > paper.high or high < paper.low:
        return Cell(f"{told}, **differs**", "differs")
    return Cell(f"{told}, not resolved", "not resolved")
