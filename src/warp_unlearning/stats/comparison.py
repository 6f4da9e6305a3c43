"""Two audits of the same shadows and points, or pairs of areas, side by side: does the second leak less, and by what
share?

The difference is taken cell by cell, or pair by pair, before anything is squared, so that what both owe to the same
shadows and points cancels. The share of the advantage that is gone,

    1 − (T_other − c) / (T_base − c),    c what chance alone would give (½ for an area, the FPR for a rate),

is a ratio, and its interval is Fieller's: all ρ = 1 − share for which T_other − c − ρ (T_base − c) is within its own t
interval of 0. Where the base's advantage is not distinguishable from 0 that set has no bounds, and no share is stated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InputError
from .clusters import TwoWay
from .intervals import Estimate, Spread, check_level


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


def compare(base: float, other: float, table: TwoWay, *, chance: float = 0.5, level: float = 0.95) -> Comparison:
    """Base against other from the joint table of their influences, base first."""
    check_level(level)
    spread = table.spread([1.0, -1.0])
    apart, reach = base - other, spread.reach(level)
    reduction, note = _fieller(base - chance, other - chance, table.spread, level)
    return Comparison(
        base=base,
        other=other,
        chance=chance,
        difference=Estimate(apart, apart - reach, apart + reach),
        p_value=spread.p_value(apart),
        reduction=reduction,
        note=note,
    )


def paired_reduction(base: ArrayLike, other: ArrayLike, *, chance: float = 0.5, level: float = 0.95) -> Estimate | None:
    """The share of the mean advantage that is gone, from n pairs: the same units measured without and with a defence.
    None below two pairs, and where the base's advantage is not distinguishable from 0.

    >>> str(paired_reduction([0.70, 0.71, 0.69], [0.60, 0.61, 0.59]))
    '0.500 [0.445, 0.571]'
    """
    check_level(level)
    pairs = np.asarray(base, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if pairs[0].shape != pairs[1].shape or pairs[0].ndim != 1:
        raise InputError(f"{pairs[0].shape} values against {pairs[1].shape}; give one of each for every pair")
    n = len(pairs[0])
    if n < 2:
        return None
    covariance = np.cov(*pairs) / n

    def spread(weights: Sequence[float]) -> Spread:
        return Spread(max(float(np.asarray(weights) @ covariance @ weights), 0.0), n - 1)

    before, after = (float(values.mean()) - chance for values in pairs)
    return _fieller(before, after, spread, level)[0]


def _fieller(
    base: float, other: float, spread: Callable[[Sequence[float]], Spread], level: float
) -> tuple[Estimate | None, str]:
    """The reduction 1 − other/base of two advantages, or why there is none; `spread` is that of a weighted sum."""
    if abs(base) <= spread([1.0, 0.0]).reach(level):
        return None, "the base's advantage is not distinguishable from chance, so no reduction of it is stated"

    def outside(remaining: float) -> bool:
        weights = [-remaining, 1.0]
        return abs(other - remaining * base) > spread(weights).reach(level)

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
