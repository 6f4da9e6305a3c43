"""How much each score moves the area under the curve, or a true-positive rate at a fixed false-positive rate.

To first order a statistic T of two sets of scores is T + Σ ψᵢ: with F₊ and F₋ the distributions of the scores, n₊ and
n₋ their numbers, and a tied pair counted as one half,

    area:                 ψ₊ = (F₋(s) − T) / n₊,       ψ₋ = (1 − F₊(s) − T) / n₋;
    rate at threshold v:  ψ₊ = (1[s > v] − T) / n₊,    ψ₋ = −r (1[s > v] − FPR) / n₋,

r the slope of the curve there. The second line of a rate is what a fixed threshold forgets: v is itself estimated
from the negatives. Sums of ψ over whatever is drawn together (all scores of a shadow, all scores of a point) carry
its variance.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InputError
from .roc import Floats, check_rate, finite_scores


@dataclass(frozen=True, eq=False)
class Influence:
    """A statistic and ψ of every positive and negative score, in the order they were given. Each set sums to 0."""

    value: float
    positive: Floats
    negative: Floats


def area(positive: ArrayLike, negative: ArrayLike) -> float:
    """P(s₊ > s₋) + ½ P(s₊ = s₋), without the curve.

    >>> area([2.0, 1.0], [1.0, 0.0])
    0.875
    """
    high, low = finite_scores(positive, "positive"), finite_scores(negative, "negative")
    return float(_share_below(np.sort(high), np.sort(low)).mean())


def area_influence(positive: ArrayLike, negative: ArrayLike) -> Influence:
    """The area under the curve and every score's ψ.

    >>> area_influence([2.0, 1.0], [1.0, 0.0]).positive
    array([ 0.0625, -0.0625])
    """
    high, low = finite_scores(positive, "positive"), finite_scores(negative, "negative")
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
    high, low = finite_scores(positive, "positive"), finite_scores(negative, "negative")
    ranked_high, ranked_low = np.sort(high), np.sort(low)
    limit = threshold(ranked_low, fpr)
    hit, alarm = high > limit, low > limit
    value, false = float(hit.mean()), float(alarm.mean())
    slope = _chord(ranked_high, ranked_low, fpr)
    return Influence(value, (hit - value) / len(high), -slope * (alarm - false) / len(low))


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
