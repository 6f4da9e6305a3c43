"""Values with their intervals: exact for proportions, Student's for means and for what has a known variance.

`scipy.stats` has the quantiles too; every command would wait a second for its import.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from ..errors import InputError


@dataclass(frozen=True)
class Estimate:
    """A value and the ends of its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Spread:
    """A variance, the degrees of freedom it was estimated with, and the part of it that rows add by moving together."""

    variance: float
    freedom: float
    together: float = 0.0

    @property
    def error(self) -> float:
        """The standard error."""
        return float(np.sqrt(self.variance))

    def reach(self, level: float) -> float:
        """The half width of the interval of the given level: standard error times Student's quantile."""
        return self.error * student_beyond((1 - level) / 2, self.freedom)

    def p_value(self, distance: float) -> float:
        """How often chance alone is at least `distance` away, on either side."""
        if self.variance == 0:
            return 0.0 if distance else 1.0
        return 2 * student_tail(abs(distance) / self.error, self.freedom)


def normal_beyond(tail: float) -> float:
    """Z with P(Z > z) = `tail` for a standard normal Z."""
    return -float(special.ndtri(tail))


def student_beyond(tail: float, freedom: float) -> float:
    """T with P(T > t) = `tail` for a T of Student's distribution."""
    return -float(special.stdtrit(freedom, tail))


def student_tail(t: float, freedom: float) -> float:
    """P(T > t) for a T of Student's distribution."""
    return float(special.stdtr(freedom, -t))


def clopper_pearson(share: float, trials: float, *, level: float = 0.95) -> tuple[float, float]:
    """The ends of Clopper and Pearson's interval of share · trials successes, which need not be a whole number."""
    tail, hits = (1 - level) / 2, share * trials
    low = special.betaincinv(hits, trials - hits + 1, tail) if share > 0 else 0.0
    high = special.betainccinv(hits + 1, trials - hits, tail) if share < 1 else 1.0
    return float(low), float(high)


def proportion(successes: int, trials: int, *, level: float = 0.95) -> Estimate:
    """A proportion with its Clopper-Pearson interval, which covers at least `level` for every true value.

    >>> str(proportion(0, 10))
    '0.000 [0.000, 0.308]'
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise InputError(f"{successes} successes of {trials}; give 0 to n successes of n >= 1 trials")
    share = successes / trials
    return Estimate(share, *clopper_pearson(share, trials, level=level))


def mean(values: ArrayLike, *, level: float = 0.95) -> Estimate:
    """A mean with Student's interval; a single value has an interval without bounds.

    >>> str(mean([1.0, 2.0, 3.0]))
    '2.000 [-0.484, 4.484]'
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.size == 0:
        raise InputError("the mean of no values was asked for; give at least one")
    centre = float(sample.mean())
    if sample.size == 1:
        return Estimate(centre, -np.inf, np.inf)
    reach = student_beyond((1 - level) / 2, sample.size - 1) * sample.std(ddof=1) / np.sqrt(sample.size)
    return Estimate(centre, centre - float(reach), centre + float(reach))


def share_interval(value: float, spread: Spread, *, level: float = 0.95) -> Estimate:
    """An interval for a number between 0 and 1 (an area, a rate), symmetric on the logit scale so that it stays inside.

    At 0 and at 1 there is no logit and, as a rule, no variance left: use `proportion` there.
    """
    check_level(level)
    if not 0 < value < 1:
        raise InputError(f"the value is {value}; an interval on the logit scale needs one between 0 and 1")
    centre, reach = np.log(value) - np.log1p(-value), spread.reach(level) / (value * (1 - value))
    low, high = (float(np.exp(-np.logaddexp(0.0, -end))) for end in (centre - reach, centre + reach))
    return Estimate(value, low, high)


def check_level(level: float) -> None:
    """Refuse what is no confidence level."""
    if not 0 < level < 1:
        raise InputError(f"the level is {level}; it must lie between 0 and 1, for example 0.95")
