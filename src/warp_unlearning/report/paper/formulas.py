"""Formulas that the paper's "improvement (%)" may stand for, and what numbers with intervals make of them.

With b the number without and w that with the defence, c what chance alone gives:

    advantage   (b − w) / (b − c)           the share of the attacker's advantage that is gone
    privacy     (1 − w) / (1 − b) − 1       by what share 1 − AUC rises
    errors      1 − (1 − w) / (1 − b)       by what share errors fall, for accuracies
    of base     (b − w) / b
    of defended (b − w) / w

Where two numbers have separate intervals, that of a difference or a ratio is taken from their ends. Its reach is at
least that of any pairing: the standard deviation of X − Y does not exceed the sum of theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from ..measures import Estimate
from .numbers import PaperNumber

Formula = Callable[[float, float, float], float]

FORMULAS: dict[str, Formula] = {
    "advantage": lambda b, w, c: (b - w) / (b - c),
    "privacy": lambda b, w, c: (1 - w) / (1 - b) - 1,
    "errors": lambda b, w, c: 1 - (1 - w) / (1 - b),
    "of base": lambda b, w, c: (b - w) / b,
    "of defended": lambda b, w, c: (b - w) / w,
}


def chance_of(column: str) -> float:
    """What guessing scores in a column: ½ for an area, the false-positive rate for a rate, and 0 for others.

    >>> chance_of("all: AUC"), chance_of("TPR at 0.1 %"), chance_of("PSNR")
    (0.5, 0.001, 0.0)
    """
    measure = column.rpartition(": ")[2]
    if measure == "AUC":
        return 0.5
    if measure.startswith("TPR at "):
        return float(measure.removeprefix("TPR at ").removesuffix(" %")) / 100
    return 0.0


def improvement(formula: str, base: PaperNumber, defended: PaperNumber) -> float | None:
    """The improvement in percent by a formula, from the numbers as printed; None where it is not defined."""
    if base.value is None or defended.value is None:
        return None
    try:
        return 100 * FORMULAS[formula](base.value, defended.value, chance_of(base.column))
    except ZeroDivisionError:
        return None


def reproduces(formula: str, base: PaperNumber, defended: PaperNumber, printed: PaperNumber) -> bool:
    """Whether some numbers that round to what is printed give the improvement that is printed."""
    ends = list(product((base.low, base.high), (defended.low, defended.high)))
    try:
        found = [100 * FORMULAS[formula](b, w, chance_of(base.column)) for b, w in ends]
    except ZeroDivisionError:
        return False
    # A pole between the ends would make every number possible, and none meaningful.
    chance = chance_of(base.column)
    if formula == "advantage" and (base.low - chance) * (base.high - chance) <= 0:
        return False
    return min(found) <= printed.high and printed.low <= max(found)


def difference(left: Estimate, right: Estimate) -> Estimate | None:
    """Left − right from two separate intervals."""
    if left.value is None or right.value is None:
        return None
    low = None if left.low is None or right.high is None else left.low - right.high
    high = None if left.high is None or right.low is None else left.high - right.low
    return Estimate(left.value - right.value, low, high)


def ratio(top: Estimate, bottom: Estimate) -> Estimate | None:
    """Top / bottom from two separate intervals; None where the bottom is not positive, without an interval where the
    bottom's reaches 0.
    """
    if top.value is None or bottom.value is None or bottom.value <= 0:
        return None
    value = top.value / bottom.value
    if None in (top.low, top.high, bottom.low, bottom.high) or (bottom.low or 0) <= 0:
        return Estimate(value, None, None)
    found = [t / b for t in (top.low, top.high) for b in (bottom.low, bottom.high) if t is not None and b]
    return Estimate(value, min(found), max(found))


def advantage_gone(base: Estimate, defended: Estimate, chance: float = 0.5) -> Estimate | None:
    """The share of the advantage over chance that is gone, from separate intervals."""
    left = ratio(defended.mapped(1, -chance), base.mapped(1, -chance))
    return None if left is None else left.mapped(-1, 1)


def privacy_gain(base: Estimate, defended: Estimate) -> Estimate | None:
    """By what share 1 − AUC rises, from separate intervals."""
    risen = ratio(defended.mapped(-1, 1), base.mapped(-1, 1))
    return None if risen is None else risen.mapped(1, -1)
