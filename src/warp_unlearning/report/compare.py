"""Ours beside the paper's: agreement, difference, or why neither can be said.

Ours *agrees* where its 95 % interval meets the numbers that round to the paper's, else it *differs*. Without an
interval, or where a rate is not resolved, nothing is said. An interval that also contains what guessing scores is wide:
it would agree with no attack at all.

The paper's "improvement (%)" stands for one of two formulas. With b the number without and w that with the defence, and
c what guessing scores:

    advantage   (b − w) / (b − c)           the share of the attacker's advantage that is gone
    privacy     (1 − w) / (1 − b) − 1       by what share 1 − AUC rises

Where two numbers have separate intervals, that of a difference or a ratio is taken from their ends. Its reach is at
least that of any pairing: the standard deviation of X − Y does not exceed the sum of theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Literal

from ..stats.intervals import Estimate
from .paper_numbers import PaperNumber, PaperTable
from .schema import Rate
from .words import showable, written

Outcome = Literal["agrees", "differs", "not resolved", "no interval", "not measured", "not compared"]
SEPARATE = "† from two separate intervals, so wider than a paired one."
_COUNTED: dict[Outcome, str] = {
    "agrees": "agree",
    "differs": "differ",
    "not resolved": "not resolved by our audit",
    "no interval": "without an interval of ours",
    "not measured": "not measured",
    "not compared": "not comparable",
}


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


@dataclass(frozen=True)
class Change:
    """A change that a defence makes; `paired` is False where it rests on two separate intervals."""

    estimate: Estimate | None
    paired: bool
    note: str = ""


def known(estimate: Estimate | None) -> bool:
    """Whether there is a value with both ends of its interval."""
    return estimate is not None and isfinite(estimate.low) and isfinite(estimate.high)


def bare(value: float) -> Estimate:
    """A value whose interval is not known."""
    return Estimate(value, -inf, inf)


def mapped(found: Estimate, scale: float, offset: float = 0.0) -> Estimate:
    """The line scale · x + offset of value and interval, whose ends change places where `scale` is negative.

    >>> mapped(Estimate(0.25, 0.0, 0.5), -2, 1)
    Estimate(value=0.5, low=0.0, high=1.0)
    """
    low, high = sorted(scale * end + offset for end in (found.low, found.high))
    return Estimate(scale * found.value + offset, low, high)


def shown(estimate: Estimate | None, *, digits: int = 3, scale: float = 1.0) -> str:
    """A number with its interval; one without says so.

    >>> shown(bare(0.5))
    '0.500 (no interval)'
    """
    text = written(estimate, digits=digits, scale=scale)
    return str(text) if estimate is None or known(estimate) else f"{text.value} (no interval)"


def beside(
    ours: Estimate | None,
    paper: PaperNumber | None,
    *,
    digits: int = 3,
    scale: float = 1.0,
    compared: bool = True,
    within: bool = False,
    chance: float | None = None,
) -> Cell:
    """Ours with the paper's number after it; `scale` takes ours to the unit of the paper.

    With `compared` False the paper's number is shown, but what it was measured on forbids a comparison. `within` is for
    claims such as "differs by at most x": ours agrees only where its whole interval lies within. `chance` is what
    guessing scores.
    """
    text = shown(ours, digits=digits, scale=scale)
    if paper is None:
        return Cell(text)
    text = f"{text}; paper {paper}"
    if ours is None:
        return Cell(text, "not measured")
    if not compared:
        return Cell(text, "not compared")
    if not known(ours):
        return Cell(text, "no interval")
    low, high = scale * ours.low, scale * ours.high
    if high < paper.low or paper.high < low:
        gap = "" if within else f" by {_gap(scale * ours.value, paper, digits)}"
        return Cell(f"{text}, **differs**{gap}", "differs")
    if within and not paper.low <= low <= high <= paper.high:
        return Cell(f"{text}, not resolved", "not resolved")
    vague = chance is not None and ours.low <= chance <= ours.high
    return Cell(f"{text}, agrees{', as does guessing' if vague else ''}", "agrees", vague)


def rate_beside(rate: Rate | None, paper: PaperNumber | None) -> Cell:
    """A true-positive rate with the paper's after it; one that the negatives cannot resolve is said to be that."""
    if rate is None or rate.resolved:
        return beside(None if rate is None else rate.tpr, paper, chance=None if rate is None else rate.fpr)
    text = f"not resolved ({rate.negatives:,} negatives)"
    return Cell(text) if paper is None else Cell(f"{text}; paper {paper}", "not resolved")


def tally(cells: Iterable[Cell]) -> str:
    """How many of the paper's numbers agree, differ, or could not be compared."""
    found = [cell for cell in cells if cell.outcome is not None]
    if not found:
        return "The paper prints no number to compare with."
    counts = Counter(cell.outcome for cell in found)
    texts = {name: f"{counts[name]} {words}" for name, words in _COUNTED.items() if counts[name]}
    if vague := sum(cell.guessing for cell in found):
        texts["agrees"] += f" ({vague} of them with intervals that contain guessing too)"
    return f"Of {len(found)} numbers of the paper: {', '.join(texts.values())}."


def direction(change: Estimate | None, *, falls: str = "lowers", rises: str = "raises") -> str:
    """What the interval of a reduction says: above 0, below 0, or neither.

    >>> direction(Estimate(0.2, 0.1, 0.3)), direction(Estimate(0.2, -0.1, 0.3))
    ('lowers', 'not shown: the interval contains 0')
    """
    if change is None:
        return "not measured"
    if not known(change):
        return "no interval"
    return falls if change.low > 0 else rises if change.high < 0 else "not shown: the interval contains 0"


def chance_of(column: str) -> float:
    """What guessing scores in a column: ½ for an area, the false-positive rate for a rate, and 0 for others.

    >>> chance_of("all: AUC"), chance_of("TPR at 0.1 %"), chance_of("PSNR")
    (0.5, 0.001, 0.0)
    """
    measure = column.rpartition(": ")[2]
    if measure == "AUC":
        return 0.5
    return float(measure[len("TPR at ") : -len(" %")]) / 100 if measure.startswith("TPR at ") else 0.0


def improvement(
    formula: Literal["advantage", "privacy"], base: PaperNumber | None, defended: PaperNumber | None, column: str
) -> PaperNumber | None:
    """The paper's improvement from its own numbers, to a tenth of a percent; None where it is not defined."""
    b, w = (None if number is None else number.value for number in (base, defended))
    bottom = None if b is None else b - chance_of(column) if formula == "advantage" else 1 - b
    if b is None or w is None or not bottom:
        return None
    return PaperNumber.parse(f"{100 * ((b - w) / bottom):.1f}")


def difference(left: Estimate | None, right: Estimate | None) -> Estimate | None:
    """Left − right from two separate intervals."""
    if left is None or right is None:
        return None
    return Estimate(left.value - right.value, left.low - right.high, left.high - right.low)


def ratio(top: Estimate | None, bottom: Estimate | None) -> Estimate | None:
    """Top / bottom from two separate intervals; None where the bottom is not positive, without an interval where the
    bottom's reaches 0.
    """
    if top is None or bottom is None or bottom.value <= 0:
        return None
    value = top.value / bottom.value
    if not known(top) or not known(bottom) or bottom.low <= 0:
        return bare(value)
    found = [t / b for t in (top.low, top.high) for b in (bottom.low, bottom.high)]
    return Estimate(value, min(found), max(found))


def advantage_gone(base: Estimate, defended: Estimate, chance: float = 0.5) -> Estimate | None:
    """The share of the advantage over chance that is gone, from separate intervals."""
    left = ratio(mapped(defended, 1, -chance), mapped(base, 1, -chance))
    return None if left is None else mapped(left, -1, 1)


def privacy_gain(base: Estimate, defended: Estimate) -> Estimate | None:
    """By what share 1 − AUC rises, from separate intervals."""
    risen = ratio(mapped(defended, -1, 1), mapped(base, -1, 1))
    return None if risen is None else mapped(risen, 1, -1)


def magnitude(change: Estimate | None) -> Estimate | None:
    """|change|; its interval starts at 0 where that of the change contains 0."""
    if change is None or not known(change):
        return None if change is None else bare(abs(change.value))
    ends = sorted((abs(change.low), abs(change.high)))
    return Estimate(abs(change.value), 0.0 if change.low <= 0 <= change.high else ends[0], ends[1])


def spread_of(found: Sequence[Estimate | None]) -> Estimate | None:
    """Largest less smallest. Its interval is from the separate ones: at least the largest lower end less the smallest
    upper end, at most the largest upper end less the smallest lower end.
    """
    values, lows, highs = ends_of(found)
    if len(values) < 2:
        return None
    value = max(values) - min(values)
    if len(lows) < len(values) or len(highs) < len(values):
        return bare(value)
    return Estimate(value, max(0.0, max(lows) - min(highs)), max(highs) - min(lows))


def ends_of(found: Iterable[Estimate | None]) -> tuple[list[float], list[float], list[float]]:
    """The values of estimates that have one, and those of their lower and upper ends that are known."""
    there = [e for e in found if e is not None]
    lows, highs = ([end for end in ends if isfinite(end)] for ends in ([e.low for e in there], [e.high for e in there]))
    return [e.value for e in there], lows, highs


@dataclass(frozen=True)
class Table:
    """A table in Markdown, empty where it has no rows; what would end a cell or a line is replaced.

    >>> print(Table(["a", "b"], [["1", "x|y"]]))
    | a | b |
    |---|---|
    | 1 | x\\|y |
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[object]]

    @property
    def cells(self) -> list[Cell]:
        """The cells that stand beside the paper's."""
        return [cell for row in self.rows for cell in row if isinstance(cell, Cell)]

    def __str__(self) -> str:
        every = (self.heads, *self.rows) if self.rows else ()
        lines = [[_flat(str(cell)).replace("<", "&lt;").replace("|", "\\|") for cell in row] for row in every]
        texts = [f"| {' | '.join(line)} |" for line in lines]
        return "\n".join([*texts[:1], "|" + "---|" * len(self.heads), *texts[1:]]) if texts else ""


def bullets(items: Sequence[str]) -> str:
    """A list in Markdown."""
    return "\n".join(f"- {_flat(item)}" for item in items)


def paragraphs(*parts: str) -> str:
    """What is not empty, with empty lines between."""
    return "\n\n".join(part for part in parts if part)


def code(text: str) -> str:
    """Text in a fixed font on one line."""
    return f"`{_flat(text).replace('`', chr(39))}`"


def missing_rows(there: Iterable[str], paper: PaperTable) -> tuple[str, list[Cell]]:
    """The paper's rows but those there, and a cell for every number in them."""
    found = set(there)
    missing = [row for row in paper.rows if row not in found]
    cells = [Cell("", "not measured") for row in missing for _ in paper.rows[row]]
    return (f"Rows of the paper that were not measured: {', '.join(missing)}." if missing else ""), cells


def change_text(change: Change, *, scale: float = 1.0, digits: int = 3) -> str:
    """A change with its interval; † where it rests on two separate intervals, ‡ where a note says why there is none."""
    if change.estimate is None:
        return "not stated ‡" if change.note else "not measured"
    return shown(change.estimate, scale=scale, digits=digits) + ("" if change.paired else " †")


def footnotes(changes: Sequence[Change]) -> str:
    """What † and ‡ of a table stand for, where they occur."""
    notes = dict.fromkeys(c.note for c in changes if c.estimate is None and c.note)
    separate = any(not c.paired and c.estimate is not None for c in changes)
    return paragraphs(SEPARATE if separate else "", f"‡ {'; '.join(notes)}." if notes else "")


def _flat(text: str) -> str:
    return " ".join(showable(text).split())


def _gap(value: float, paper: PaperNumber, digits: int) -> str:
    """Ours less the paper's as printed; from the nearer end where the paper has a range or a bound."""
    low, high = paper.ends
    return f"{value - min(max(value, low), high):+.{digits}f}".replace("-", "−")
