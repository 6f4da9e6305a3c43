"""Two audits of the same shadows and points, side by side: does the second leak less, and by what share?

The difference is taken cell by cell before anything is squared, so that what both audits owe to the same shadows and
points cancels. The share of the advantage that is gone,

    1 − (T_other − c) / (T_base − c),    c what chance alone would give (½ for an area, the FPR for a rate),

is a ratio, and its interval is Fieller's: all ρ = 1 − share for which T_other − c − ρ (T_base − c) is within its own t
interval of 0. Where the base's advantage is not distinguishable from 0 that set has no bounds, and no share is stated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .clusters import TwoWay, check_level
from .intervals import Estimate


@dataclass(frozen=True)
class Comparison:
    """`difference`: base − other, positive where the other leaks less. `reduction`: None where none can be stated."""

    base: float
    other: float
    chance: float
    difference: Estimate
    p_value: float
    reduction: Estimate | None
    note: str = ""

    def __str__(self) -> str:
        gone = self.note if self.reduction is None else f"advantage reduced by {self.reduction}"
        return f"{self.base:.3f} -> {self.other:.3f}: less by {self.difference}, p = {self.p_value:.2g}; {gone}"

    def summary(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "base": self.base,
            "other": self.other,
            "chance": self.chance,
            "difference": _plain(self.difference),
            "p_value": self.p_value,
            "reduction": None if self.reduction is None else _plain(self.reduction),
            "note": self.note,
        }


def advantage_reduction(base: float, other: float, *, chance: float = 0.5) -> float:
    """(base − other) / (base − chance): the share of the advantage over chance that is gone; nan where there was none.

    >>> round(advantage_reduction(0.545, 0.516), 3)
    0.644
    """
    return (base - other) / (base - chance) if base != chance else float("nan")


def compare(base: float, other: float, table: TwoWay, *, chance: float = 0.5, level: float = 0.95) -> Comparison:
    """Base against other from the joint table of their influences, base first."""
    check_level(level)
    spread = table.spread([1.0, -1.0])
    apart, reach = base - other, spread.reach(level)
    reduction, note = _fieller(base - chance, other - chance, table, level)
    return Comparison(
        base=base,
        other=other,
        chance=chance,
        difference=Estimate(apart, apart - reach, apart + reach),
        p_value=spread.p_value(apart),
        reduction=reduction,
        note=note,
    )


def _fieller(base: float, other: float, table: TwoWay, level: float) -> tuple[Estimate | None, str]:
    """The reduction 1 − other/base of two advantages, or why there is none."""
    if abs(base) <= table.spread([1.0, 0.0]).reach(level):
        return None, "the base's advantage is not distinguishable from chance, so no reduction of it is stated"

    def outside(remaining: float) -> bool:
        weights = [-remaining, 1.0]
        return abs(other - remaining * base) > table.spread(weights).reach(level)

    ratio = other / base
    # The advantage is beyond its own reach, so that the accepted set is one interval around the ratio.
    low, high = (_edge(outside, ratio, side) for side in (-1.0, 1.0))
    if not np.isfinite([low, high]).all():
        return (
            None,
            "the base's advantage is barely distinguishable from chance: the interval of its reduction has no bound",
        )
    return Estimate(1 - ratio, 1 - high, 1 - low), ""


def _edge(outside: Callable[[float], bool], start: float, side: float) -> float:
    """The end of the accepted set on one side of `start`, by doubling and bisection."""
    step = 1e-6 * (1 + abs(start))
    while not outside(start + side * step):
        step *= 2
        if step > 1e6 * (1 + abs(start)):
            return side * np.inf
    near, far = 0.0 if step <= 1e-6 * (1 + abs(start)) else step / 2, step
    for _ in range(60):
        middle = (near + far) / 2
        near, far = (near, middle) if outside(start + side * middle) else (middle, far)
    return float(start + side * far)


def _plain(estimate: Estimate) -> dict[str, float]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}
