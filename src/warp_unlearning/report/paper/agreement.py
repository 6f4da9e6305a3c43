"""Ours beside the paper's: agreement, difference, or why neither can be said.

Ours *agrees* where its 95 % interval meets the numbers that round to the paper's, else it *differs*. Without an
interval, or where a rate is not resolved, nothing is said. An interval that also contains what guessing scores is wide:
it would agree with no attack at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ..measures import Estimate, Rate, written
from .numbers import PaperNumber

Outcome = Literal["agrees", "differs", "not resolved", "no interval", "not measured", "not compared"]
OUTCOMES: tuple[Outcome, ...] = ("agrees", "differs", "not resolved", "no interval", "not measured", "not compared")


@dataclass(frozen=True)
class Cell:
    """The text of a cell of a table, and what became of the paper's number in it; None where the paper has none.

    `guessing` is True where ours agrees, and guessing would agree too.
    """

    text: str
    outcome: Outcome | None = None
    guessing: bool = False

    def __str__(self) -> str:
        return self.text


def known(estimate: Estimate | None) -> bool:
    """Whether there is a value with both ends of its interval."""
    return estimate is not None and None not in (estimate.value, estimate.low, estimate.high)


def shown(estimate: Estimate | None, *, digits: int = 3, scale: float = 1.0, unit: str = "") -> str:
    """A number with its interval; one without says so.

    >>> shown(Estimate(0.5, None, None))
    '0.500 (no interval)'
    """
    text = written(estimate, digits=digits, scale=scale, unit=unit)
    return str(text) if estimate is None or estimate.value is None or known(estimate) else f"{text.value} (no interval)"


def apart(estimate: Estimate, paper: PaperNumber) -> float | None:
    """How far the interval is from all that the paper's number may stand for; 0 where they meet, None without one."""
    if estimate.low is None or estimate.high is None:
        return None
    return max(paper.low - estimate.high, estimate.low - paper.high, 0.0)


def beside(
    ours: Estimate | None,
    paper: PaperNumber | None,
    *,
    digits: int = 3,
    scale: float = 1.0,
    unit: str = "",
    compared: bool = True,
    chance: float | None = None,
) -> Cell:
    """Ours with the paper's number after it; `scale` takes ours to the unit of the paper.

    With `compared` False the paper's number is shown, but what it was measured on forbids a comparison. `chance` is
    what guessing scores.
    """
    text = shown(ours, digits=digits, scale=scale, unit=unit)
    if paper is None:
        return Cell(text)
    if ours is None or ours.value is None:
        return Cell(f"{text}; paper {paper}", "not measured")
    if not compared:
        return Cell(f"{text}; paper {paper}", "not compared")
    scaled = ours.mapped(scale)
    gap = apart(scaled, paper)
    if gap is None:
        return Cell(f"{text}; paper {paper}", "no interval")
    if gap == 0:
        vague = chance is not None and (ours.low or 0) <= chance <= (ours.high or 0)
        return Cell(f"{text}; paper {paper}, agrees{', as does guessing' if vague else ''}", "agrees", vague)
    return Cell(f"{text}; paper {paper}, **differs** by {_signed(scaled, paper, digits)}", "differs")


def rate_beside(rate: Rate | None, paper: PaperNumber | None) -> Cell:
    """A true-positive rate with the paper's after it; one that the negatives cannot resolve is said to be that."""
    if rate is None or rate.resolved:
        return beside(None if rate is None else rate.tpr, paper, chance=None if rate is None else rate.fpr)
    text = f"not resolved ({rate.negatives:,} negatives)"
    return Cell(text) if paper is None else Cell(f"{text}; paper {paper}", "not resolved")


def tally(cells: Iterable[Cell]) -> str:
    """How many of the paper's numbers agree, differ, or could not be compared."""
    found = [cell for cell in cells if cell.outcome is not None]
    counts = Counter(cell.outcome for cell in found)
    vague = sum(cell.guessing for cell in found)
    total = sum(counts.values())
    if not total:
        return "The paper prints no number to compare with."
    told = {name: f"{counts[name]} {_WORDS[name]}" for name in OUTCOMES if counts[name]}
    if vague:
        told["agrees"] += f" ({vague} of them with intervals that contain guessing too)"
    parts = list(told.values())
    return f"Of {total} numbers of the paper: {', '.join(parts)}."


def direction(change: Estimate | None, *, falls: str = "lowers", rises: str = "raises") -> str:
    """What the interval of a reduction says: above 0, below 0, or neither.

    >>> direction(Estimate(0.2, 0.1, 0.3)), direction(Estimate(0.2, -0.1, 0.3))
    ('lowers', 'not shown: the interval contains 0')
    """
    if change is None or change.value is None:
        return "not measured"
    if change.low is None or change.high is None:
        return "no interval"
    return falls if change.low > 0 else rises if change.high < 0 else "not shown: the interval contains 0"


_WORDS: dict[Outcome, str] = {
    "agrees": "agree",
    "differs": "differ",
    "not resolved": "not resolved by our audit",
    "no interval": "without an interval of ours",
    "not measured": "not measured",
    "not compared": "not comparable",
}


def _signed(ours: Estimate, paper: PaperNumber, digits: int) -> str:
    """Ours less the paper's as printed; from the nearer end where the paper has a range or a bound."""
    value, (low, high) = ours.value or 0.0, paper.ends
    target = min(max(value, low), high)
    return f"{value - target:+.{digits}f}".replace("-", "−")
