"""The area under the curve of scores that are independent of each other, given the models that made them.

The scores of one pair of models: every example is a draw of its own. The variance is DeLong's, the sum over both sets
of n/(n−1) Σψ², ψ being the influences of `influence`; two areas over the same examples have the variance of the
differences of their influences.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InputError
from .clusters import Spread, check_level, share_interval
from .influence import Influence, area_influence
from .intervals import Estimate
from .roc import Floats, finite_scores
from .tails import beta_below, beta_beyond

# Below this many scores their own variance is not trusted alone.
FEW = 30


def independent_area(positive: ArrayLike, negative: ArrayLike, *, level: float = 0.95) -> Estimate:
    """The area with an interval on the logit scale, where that is within the widest that scores can have.

    Whatever the scores, the variance of an area A is at most A(1 − A)/n, n being the size of the smaller set: that of n
    draws which are each wholly right or wholly wrong. So the interval ends at the latest where the exact one of a
    proportion does, of A n successes in n trials. The logit scale passes it where A is close to 0 or 1 and n is small,
    as it divides by A(1 − A). Sets that do not overlap have the exact interval alone, since their influences say
    nothing. Scores that are all equal rank nothing, and their interval is [0, 1].

    >>> str(independent_area([3.0, 4.0, 2.0, 6.0], [1.0, 2.5, 0.0, 5.0]))
    '0.750 [0.210, 0.971]'
    """
    check_level(level)
    found = area_influence(positive, negative)
    widest = _widest(found.value, min(len(found.positive), len(found.negative)), level)
    if _spread(found.positive, found.negative).variance > 0 and 0 < found.value < 1:
        spread = _spread(found.positive, found.negative, area=found.value)
        return _within(share_interval(found.value, spread, level=level), widest)
    return widest if found.value in (0.0, 1.0) else Estimate(found.value, 0.0, 1.0)


def _widest(area: float, trials: int, level: float) -> Estimate:
    """Clopper and Pearson's interval of area · trials successes, which need not be a whole number."""
    tail, successes = (1 - level) / 2, area * trials
    low = beta_below(tail, successes, trials - successes + 1) if area > 0 else 0.0
    high = beta_beyond(tail, successes + 1, trials - successes) if area < 1 else 1.0
    return Estimate(area, float(low), float(high))


def _within(found: Estimate, widest: Estimate) -> Estimate:
    return Estimate(found.value, max(found.low, widest.low), min(found.high, widest.high))


def area_p_value(positive: ArrayLike, negative: ArrayLike) -> float:
    """The two-sided p-value of "both sets are drawn from one distribution": the Mann-Whitney test, with ties.

    >>> area_p_value([1.0, 1.0], [1.0, 1.0])
    1.0
    """
    high, low = finite_scores(positive, "positive"), finite_scores(negative, "negative")
    if np.ptp(np.concatenate([high, low])) == 0:
        return 1.0
    # Takes a second to import.
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(high, low, alternative="two-sided").pvalue)


def area_difference(one: Influence, other: Influence, *, level: float = 0.95) -> Estimate:
    """The first area less the second, over the same examples in the same order, with Student's interval."""
    check_level(level)
    sizes = [(len(found.positive), len(found.negative)) for found in (one, other)]
    if sizes[0] != sizes[1]:
        raise InputError(f"areas over {sizes[0]} and {sizes[1]} examples; give scores of the same examples")
    value = one.value - other.value
    spread = _spread(one.positive - other.positive, one.negative - other.negative)
    reach = spread.reach(level)
    return Estimate(value, max(value - reach, -1.0), min(value + reach, 1.0))


def _spread(positive: Floats, negative: Floats, *, area: float | None = None) -> Spread:
    """The variance of Σψ over both sets, with the degrees of freedom of Welch and Satterthwaite.

    A few scores may lie together by chance, and their influences then say nothing of how far apart others would be. So
    where an area is given, a set of fewer than `FEW` has at least the variance that exponential scores of that area
    have: A/(2 − A) − A² and 2A²/(1 + A) − A² for a positive and a negative, the larger of both.
    """
    counts = len(positive), len(negative)
    if min(counts) < 2:
        raise InputError(f"{counts[0]} positive and {counts[1]} negative scores; an interval needs at least 2 of each")
    parts = [float(np.square(psi).sum() * n / (n - 1)) for psi, n in zip((positive, negative), counts, strict=True)]
    if area is not None and 0 < area < 1:
        usual = max(area / (2 - area), 2 * area**2 / (1 + area)) - area**2
        parts = [max(part, usual / n) if n < FEW else part for part, n in zip(parts, counts, strict=True)]
    freedoms = [max(n, FEW) - 1 if area is not None else n - 1 for n in counts]
    doubt = sum(part**2 / freedom for part, freedom in zip(parts, freedoms, strict=True))
    total = sum(parts)
    # The squares of very small variances may vanish.
    return Spread(total, max(total**2 / doubt, 1.0) if doubt > 0 else float(min(counts) - 1))
