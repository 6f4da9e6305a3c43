"""Receiver operating characteristic of scores, its area and its rates, and how much each score moves them.

Positives should score higher. A threshold calls every score at or above it positive, so that equal scores are called
together and the curve has one vertex for each distinct score. The area counts a tied pair as one half, which is
P(s₊ > s₋) + ½ P(s₊ = s₋); between vertices the curve is a straight line for the area alone: rates are read at vertices.

To first order a statistic T of two sets of scores is T + Σ ψᵢ: with F₊ and F₋ the distributions of the scores, n₊ and
n₋ their numbers, and a tied pair counted as one half,

    area:                 ψ₊ = (F₋(s) − T) / n₊,       ψ₋ = (1 − F₊(s) − T) / n₋;
    rate at threshold v:  ψ₊ = (1[s > v] − T) / n₊,    ψ₋ = −r (1[s > v] − FPR) / n₋,

r the slope of the curve there. The second line of a rate is what a fixed threshold forgets: v is itself estimated
from the negatives. Sums of ψ over whatever is drawn together (all scores of a shadow, all scores of a point) carry
the variance of T.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InputError
from .intervals import Estimate, Spread, proportion, share_interval

Floats = NDArray[np.float64]

# Fewer expected false positives than this, and a rate is noise.
RESOLUTION = 10
# The false-positive rates at which audits are reported.
RATES = (0.0001, 0.001, 0.01, 0.05)


@dataclass(frozen=True, eq=False)
class Roc:
    """Rates at every distinct threshold, from "nothing is positive" to "everything is"."""

    fpr: Floats
    tpr: Floats
    negatives: int

    @property
    def auc(self) -> float:
        """The area under the curve: ½ for scores that know nothing."""
        return float(np.trapezoid(self.tpr, self.fpr))

    @property
    def balanced_accuracy(self) -> float:
        """The largest ½ (TPR + 1 − FPR) of any threshold: that of an attacker who knows the best one."""
        return float((0.5 * (self.tpr + 1 - self.fpr)).max())

    def resolvable(self, fpr: float) -> bool:
        """Whether `fpr` would let at least ten negatives through: below that a rate is noise."""
        check_rate(fpr)
        return fpr * self.negatives >= RESOLUTION


@dataclass(frozen=True, eq=False)
class Influence:
    """A statistic of two sets of scores and ψ of every positive and negative score, in the order they were given."""

    value: float
    positive: Floats
    negative: Floats

    @property
    def void(self) -> bool:
        """Whether an area is ½ because all scores (of each class) are equal, so that there was nothing to rank."""
        return self.value == 0.5 and not max(np.abs(self.positive).max(), np.abs(self.negative).max()) > 1e-12

    @property
    def strength(self) -> Influence:
        """The distance of an area to ½: how much is seen, whichever way round."""
        sign = np.sign(self.value - 0.5)
        return Influence(abs(self.value - 0.5), sign * self.positive, sign * self.negative)

    def __sub__(self, other: Influence) -> Influence:
        """The difference of two statistics of the same examples."""
        sizes = [(len(found.positive), len(found.negative)) for found in (self, other)]
        if sizes[0] != sizes[1]:
            raise InputError(f"areas over {sizes[0]} and {sizes[1]} examples; give scores of the same examples")
        return Influence(self.value - other.value, self.positive - other.positive, self.negative - other.negative)


@dataclass(frozen=True)
class Rate:
    """The true-positive rate at `fpr`. Below ten expected false positives `tpr` is None: a number would be noise."""

    fpr: float
    tpr: Estimate | None
    negatives: int

    @property
    def resolved(self) -> bool:
        """Whether at least ten negatives may pass."""
        return self.tpr is not None

    @property
    def needed(self) -> int:
        """The negatives it takes to resolve this rate."""
        return ceil(RESOLUTION / self.fpr) if self.fpr > 0 else 0

    def __str__(self) -> str:
        where = f"TPR at {100 * self.fpr:g} % FPR"
        if self.tpr is None:
            needed = f"{self.needed:,}" if self.fpr > 0 else "infinitely many"
            return f"{where}: unresolved ({self.negatives:,} negatives, {needed} needed)"
        return f"{where}: {self.tpr}"

    def summary(self) -> dict[str, Any]:
        """Plain data; an unresolved rate has no value."""
        known = None if self.tpr is None else {"value": self.tpr.value, "low": self.tpr.low, "high": self.tpr.high}
        return {"fpr": self.fpr, "resolved": self.resolved, "negatives": self.negatives, "tpr": known}


def roc(positive: ArrayLike, negative: ArrayLike) -> Roc:
    """The curve of two sets of scores.

    >>> roc([2.0, 1.0], [1.0, 0.0]).auc
    0.875
    """
    high, low = _both(positive, negative)
    scores = np.concatenate([high, low])
    order = np.argsort(-scores, kind="stable")
    is_positive = order < len(high)
    ranked = scores[order]
    last_of_tie = np.append(ranked[1:] != ranked[:-1], True)
    true = np.cumsum(is_positive)[last_of_tie]
    false = np.cumsum(~is_positive)[last_of_tie]
    return Roc(
        fpr=np.append(0.0, false / len(low)),
        tpr=np.append(0.0, true / len(high)),
        negatives=len(low),
    )


def area(positive: ArrayLike, negative: ArrayLike) -> float:
    """P(s₊ > s₋) + ½ P(s₊ = s₋), without the curve.

    >>> area([2.0, 1.0], [1.0, 0.0])
    0.875
    """
    high, low = _both(positive, negative)
    return float(_share_below(np.sort(high), np.sort(low)).mean())


def area_influence(positive: ArrayLike, negative: ArrayLike) -> Influence:
    """The area under the curve and every score's ψ.

    >>> area_influence([2.0, 1.0], [1.0, 0.0]).positive
    array([ 0.0625, -0.0625])
    """
    high, low = _both(positive, negative)
    orders = np.argsort(high), np.argsort(low)
    ranked = high[orders[0]], low[orders[1]]
    won, lost = np.empty_like(high), np.empty_like(low)
    won[orders[0]], lost[orders[1]] = _share_below(ranked[0], ranked[1]), _share_below(ranked[1], ranked[0])
    value = float(won.mean())
    return Influence(value, (won - value) / len(high), (1 - lost - value) / len(low))


def rate_influence(positive: ArrayLike, negative: ArrayLike, fpr: float) -> Influence:
    """The largest true-positive rate whose false-positive rate does not exceed `fpr`, and every score's ψ.

    The slope r is that of the chord between half and one and a half times `fpr`.
    """
    check_rate(fpr)
    high, low = _both(positive, negative)
    ranked_high, ranked_low = np.sort(high), np.sort(low)
    limit = threshold(ranked_low, fpr)
    hit, alarm = high > limit, low > limit
    value, false = float(hit.mean()), float(alarm.mean())
    slope = _chord(ranked_high, ranked_low, fpr)
    return Influence(value, (hit - value) / len(high), -slope * (alarm - false) / len(low))


def independent_rate(positive: ArrayLike, negative: ArrayLike, fpr: float, *, level: float = 0.95) -> Rate:
    """The rate of scores that are independent of each other.

    Two intervals, and the ends that reach further: Clopper and Pearson's at the threshold, as if that were known, and
    one on the logit scale from influences, which also holds that the threshold was found on the negatives.
    """
    found = rate_influence(positive, negative, fpr)
    high, low = len(found.positive), len(found.negative)
    if fpr * low < RESOLUTION:
        return Rate(fpr, None, low)
    exact = proportion(round(found.value * high), high, level=level)
    sets = [(psi, len(psi)) for psi in (found.positive, found.negative)]
    variance = sum(float(np.square(psi).sum() * n / (n - 1)) for psi, n in sets if n > 1)
    if 0 < found.value < 1 and variance > 0:
        wide = share_interval(found.value, Spread(variance, float(min(high, low) - 1)), level=level)
        return Rate(fpr, Estimate(found.value, min(exact.low, wide.low), max(exact.high, wide.high)), low)
    return Rate(fpr, exact, low)


def threshold(ranked_negative: Floats, fpr: float) -> float:
    """The smallest score that at most `fpr` of the negatives exceed; they are given in rising order."""
    count = len(ranked_negative)
    if count == 0:
        raise InputError("there is no negative score; give at least one")
    allowed = min(floor(fpr * count) + 1, count)
    # `fpr * count` may be rounded up; the comparison below is the one the curve makes.
    while allowed > 0 and allowed / count > fpr:
        allowed -= 1
    return -np.inf if allowed == count else float(ranked_negative[count - 1 - allowed])


def check_rate(rate: float) -> None:
    """Refuse what is no rate."""
    if not 0 <= rate <= 1:
        raise InputError(f"the false-positive rate is {rate}; it must lie between 0 and 1")


def finite(values: ArrayLike, what: str) -> Floats:
    """The values, if there are any and all of them are numbers."""
    found = np.asarray(values, dtype=np.float64)
    if found.size == 0:
        raise InputError(f"there is no {what}; give at least one")
    wrong = np.flatnonzero(~np.isfinite(found))
    if wrong.size:
        i, first = wrong[0], found.ravel()[wrong[0]]
        raise InputError(f"{what} {i} of {found.size} is {first}; remove it or find out where it came from")
    return found


def _both(positive: ArrayLike, negative: ArrayLike) -> tuple[Floats, Floats]:
    return finite(positive, "positive score").ravel(), finite(negative, "negative score").ravel()


def _share_below(scores: Floats, ranked: Floats) -> Floats:
    """For each score the share of `ranked` below it, an equal one counted as half.

    Right in any order; scores in rising order walk the table once instead of jumping through it.
    """
    found = np.searchsorted(ranked, scores, "left") + np.searchsorted(ranked, scores, "right")
    return np.asarray(found / (2 * len(ranked)), dtype=np.float64)


def _chord(ranked_high: Floats, ranked_low: Floats, fpr: float) -> float:
    """The slope of the curve between the false-positive rates `fpr`/2 and 3`fpr`/2, as far as there are any."""
    ends = [threshold(ranked_low, rate) for rate in (fpr / 2, min(1.5 * fpr, 1.0))]
    true = [1 - np.searchsorted(ranked_high, end, "right") / len(ranked_high) for end in ends]
    false = [1 - np.searchsorted(ranked_low, end, "right") / len(ranked_low) for end in ends]
    return float((true[1] - true[0]) / (false[1] - false[0])) if false[1] > false[0] else 0.0
