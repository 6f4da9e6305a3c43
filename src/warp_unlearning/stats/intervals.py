"""Intervals for the numbers that are reported: exact for proportions, Student's for means."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InputError
from .tails import beta_below, beta_beyond, student_beyond


@dataclass(frozen=True)
class Estimate:
    """A value and the ends of its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def proportion(successes: int, trials: int, *, level: float = 0.95) -> Estimate:
    """A proportion with its Clopper-Pearson interval, which covers at least `level` for every true value.

    >>> str(proportion(0, 10))
    '0.000 [0.000, 0.308]'
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise InputError(f"{successes} successes of {trials}; give 0 to n successes of n >= 1 trials")
    tail = (1 - level) / 2
    low = beta_below(tail, successes, trials - successes + 1) if successes else 0.0
    high = beta_beyond(tail, successes + 1, trials - successes) if successes < trials else 1.0
    return Estimate(successes / trials, float(low), float(high))


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
