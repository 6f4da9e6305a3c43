"""Areas of forgotten against unseen rows, within classes, with errors and intervals for rows that are independent.

With f_c forgotten and t_c unseen rows of class c, f forgotten rows in all, and A_c the area within class c,

    A = Σ_c (f_c / f) A_c,     ψ₊ = (F_unseen,c(s) − A) / f,     ψ₋ = (f_c / t_c) (1 − F_forgotten,c(s) − A) / f:

½ where the scores do not tell the rows apart, and ψ the influence of each row. Forgotten rows should score higher. The
variance is DeLong's, the sum over both sets of n/(n−1) Σψ², with the degrees of freedom of Welch and Satterthwaite.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InputError
from .intervals import Estimate, Spread, check_level, clopper_pearson, share_interval
from .roc import Floats, Influence, area_influence

LEVEL = 0.95  # of intervals and, as 1 − α, of tests
# With fewer rows the variance is not estimated below that of exponential scores with the same area.
FEW = 30


@dataclass(frozen=True, eq=False)
class Matched:
    """Forgotten and unseen rows by class: `forgot` (n,) is True where a row is forgotten, `positions` holds for each
    class those of its rows, and `counts` (classes, 2) how many of them are forgotten and unseen, none of them 0.
    """

    forgot: NDArray[np.bool_]
    positions: tuple[NDArray[np.intp], ...]
    counts: NDArray[np.int64]

    @property
    def sizes(self) -> tuple[float, float]:
        """Forgotten rows, and how many unseen rows count once each class weighs as much as it does among the forgotten
        ones: (Σw)² / Σw².
        """
        forgotten, unseen = self.counts.T
        weight = forgotten / unseen
        return float(forgotten.sum()), float((weight * unseen).sum() ** 2 / (weight**2 * unseen).sum())

    def unseen_mean(self, values: Floats) -> float:
        """The mean of values (n,) over unseen rows, each class weighted by its forgotten rows."""
        of_class = [values[at][~self.forgot[at]].mean() for at in self.positions]
        return float(np.average(of_class, weights=self.counts[:, 0]))


def match(forgot: ArrayLike, classes: ArrayLike) -> Matched:
    """Group rows by class; every class needs a forgotten and an unseen row."""
    mask, codes = np.asarray(forgot, dtype=bool), np.unique(np.asarray(classes), return_inverse=True)[1].ravel()
    if mask.shape != codes.shape or mask.size == 0:
        raise InputError(f"{mask.size} rows have {codes.size} classes; give one class for each of at least two rows")
    positions = tuple(np.flatnonzero(codes == c) for c in range(codes.max() + 1))
    counts = np.array([[mask[at].sum(), (~mask[at]).sum()] for at in positions])
    if not counts.all():
        raise InputError("a class has no forgotten or no unseen row; leave out the rows of such classes")
    return Matched(mask, positions, counts)


def matched_area(scores: ArrayLike, rows: Matched) -> Influence:
    """The area of scores (n,), matched by class; a tied pair counts one half.

    >>> matched_area([3, 1, 2, 0], match([True, False, True, False], [0, 0, 1, 1])).value
    1.0
    """
    given = np.asarray(scores, dtype=np.float64)
    if given.shape != rows.forgot.shape:
        raise InputError(f"{given.size} scores were given for {rows.forgot.size} rows; give one for each")
    within = [area_influence(given[at][rows.forgot[at]], given[at][~rows.forgot[at]]) for at in rows.positions]
    total = rows.counts[:, 0].sum()
    value = float(sum(f * part.value for (f, _), part in zip(rows.counts, within, strict=True)) / total)
    influence = np.empty_like(given)
    for at, (f, t), part in zip(rows.positions, rows.counts, within, strict=True):
        mask, above = rows.forgot[at], part.value - value
        influence[at[mask]] = (f * part.positive + above) / total
        influence[at[~mask]] = f / total * (part.negative + above / t)
    return Influence(value, influence[rows.forgot], influence[~rows.forgot])


def _sizes(found: Influence, rows: Matched | None) -> tuple[float, float]:
    return (float(len(found.positive)), float(len(found.negative))) if rows is None else rows.sizes


def spread_of(found: Influence, rows: Matched | None = None, *, least: float = 0.0) -> Spread:
    """The variance of a statistic over independent rows, of one class unless `rows` says; infinite for one row.

    `least` is the smallest variance a row is taken to have, in units of 1/n, where there are fewer than 30.
    """
    sizes = _sizes(found, rows)
    if min(sizes) < 2:
        return Spread(np.inf, 1.0)
    parts = []
    for influence, n in zip((found.positive, found.negative), sizes, strict=True):
        variance = float(np.square(influence).sum()) * n / (n - 1)
        parts.append((max(variance, least / n) if n < FEW else variance, (max(n, FEW) if least else n) - 1))
    total = sum(v for v, _ in parts)
    return Spread(total, max(total**2 / max(sum(v**2 / free for v, free in parts), 1e-300), 1.0))


def area_estimate(found: Influence, rows: Matched | None = None, *, level: float = LEVEL) -> tuple[Estimate, float]:
    """An area with its interval, and its standard error; all scores are of one class unless `rows` says.

    The interval is symmetric for the logit, and lies within Clopper and Pearson's for a proportion of as many trials as
    there are forgotten or unseen rows, whichever are fewer: no scores have a larger variance than A(1 − A)/n. It is
    [0, 1] for one row.
    """
    sizes, a = _sizes(found, rows), found.value
    spread = spread_of(found, rows, least=max(a / (2 - a), 2 * a**2 / (1 + a)) - a**2)
    if min(sizes) < 2:
        return Estimate(a, 0.0, 1.0), spread.error
    low, high = clopper_pearson(a, min(sizes), level=level)
    if 0 < a < 1:
        inner = share_interval(a, spread, level=level)
        low, high = max(inner.low, low), min(inner.high, high)
    return Estimate(a, low, high), spread.error


def independent_area(positive: ArrayLike, negative: ArrayLike, *, level: float = LEVEL) -> Estimate:
    """The area of scores that are independent of each other; [0, 1] where all are equal and rank nothing.

    >>> str(independent_area([3.0, 4.0, 2.0, 6.0], [1.0, 2.5, 0.0, 5.0]))
    '0.750 [0.210, 0.971]'
    """
    check_level(level)
    found = area_influence(positive, negative)
    return Estimate(0.5, 0.0, 1.0) if found.void else area_estimate(found, level=level)[0]


def area_difference(one: Influence, other: Influence, rows: Matched | None = None, *, level: float = LEVEL) -> Estimate:
    """The first area less the second, over the same examples in the same order, with Student's interval."""
    found = one - other
    return difference_interval(found.value, spread_of(found, rows), level=level)


def difference_interval(value: float, spread: Spread, *, level: float = LEVEL) -> Estimate:
    """Student's interval for a difference of two shares."""
    check_level(level)
    reach = spread.reach(level)
    return Estimate(value, max(value - reach, -1.0), min(value + reach, 1.0))


def strength_of(area: Estimate) -> Estimate:
    """max(AUC, 1 − AUC) with the interval that the area's implies; its lower end is ½ where that contains ½.

    >>> str(strength_of(Estimate(0.2, 0.1, 0.35)))
    '0.800 [0.650, 0.900]'
    """
    low = 0.5 if area.low <= 0.5 <= area.high else max(area.low, 1 - area.high)
    return Estimate(max(area.value, 1 - area.value), low, max(area.high, 1 - area.low))
