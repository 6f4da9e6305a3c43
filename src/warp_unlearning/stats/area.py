"""Areas of forgotten rows against unseen rows of the same classes.

With f_c forgotten and t_c unseen rows of class c, f forgotten rows in all, and A_c the area within class c,

    A = Σ_c (f_c / f) A_c,     ψ₊ = (F_unseen,c(s) − A) / f,     ψ₋ = (f_c / t_c) (1 − F_forgotten,c(s) − A) / f:

½ where the scores do not tell the rows apart, and ψ the influence of each row. Forgotten rows should score higher.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from ..errors import InputError
from .influence import area_influence
from .intervals import Estimate
from .roc import Floats
from .tails import beta_below, beta_beyond, student_beyond

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


@dataclass(frozen=True, eq=False)
class MatchedArea:
    """An area and the influence (n,) of every row on it, which sums to 0."""

    value: float
    influence: Floats

    @property
    def void(self) -> bool:
        """Whether all scores of each class are equal, so that there was nothing to tell rows by."""
        return self.value == 0.5 and not np.abs(self.influence).max() > 1e-12

    @property
    def strength(self) -> MatchedArea:
        """The distance to ½ with its influence: how much is seen, whichever way round."""
        sign = np.sign(self.value - 0.5)
        return MatchedArea(abs(self.value - 0.5), sign * self.influence)

    def __sub__(self, other: MatchedArea) -> MatchedArea:
        """The difference of two areas over the same rows."""
        return MatchedArea(self.value - other.value, self.influence - other.influence)


def matched_area(scores: ArrayLike, rows: Matched) -> MatchedArea:
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
    return MatchedArea(value, influence)


def standard_error(influence: Floats, rows: Matched, *, least: float = 0.0) -> tuple[float, float]:
    """Standard error and degrees of freedom (Welch's) of a statistic with this influence; infinite for one row.

    `least` is the smallest variance a row is taken to have, in units of 1/n, where there are fewer than 30.
    """
    sizes = rows.sizes
    if min(sizes) < 2:
        return np.inf, 1.0
    parts = []
    for mask, n in zip((rows.forgot, ~rows.forgot), sizes, strict=True):
        found = float(np.square(influence[mask]).sum()) * n / (n - 1)
        parts.append((max(found, least / n) if n < FEW else found, (max(n, FEW) if least else n) - 1))
    total = sum(v for v, _ in parts)
    return float(np.sqrt(total)), max(total**2 / max(sum(v**2 / free for v, free in parts), 1e-300), 1.0)


def area_estimate(found: MatchedArea, rows: Matched, *, level: float = LEVEL) -> tuple[Estimate, float]:
    """An area with its interval, and its standard error.

    The interval is symmetric for the logit, and lies within Clopper and Pearson's for a proportion of as many trials as
    there are forgotten or unseen rows, whichever are fewer. It is [0, 1] for one row.
    """
    a, m, tail = found.value, min(rows.sizes), (1 - level) / 2
    exponential = max(a / (2 - a), 2 * a**2 / (1 + a)) - a**2
    error, freedom = standard_error(found.influence, rows, least=exponential)
    if m < 2:
        return Estimate(a, 0.0, 1.0), error
    low = beta_below(tail, a * m, m - a * m + 1) if a > 0 else 0.0
    high = beta_beyond(tail, a * m + 1, m - a * m) if a < 1 else 1.0
    if 0 < a < 1:
        reach = student_beyond(tail, freedom) * error / (a * (1 - a))
        ends = special.expit(special.logit(a) + np.array([-reach, reach]))
        low, high = max(float(ends[0]), low), min(float(ends[1]), high)
    return Estimate(a, low, high), error
