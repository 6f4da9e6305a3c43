"""Receiver operating characteristic of scores, with ties taken as ties.

Positives should score higher. A threshold calls every score at or above it positive, so that equal scores are called
together and the curve has one vertex for each distinct score. The area counts a tied pair as one half, which is
P(s₊ > s₋) + ½ P(s₊ = s₋); between vertices the curve is a straight line for the area alone: rates are read at vertices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InputError

Floats = NDArray[np.float64]

# Fewer expected false positives than this, and a rate is noise.
RESOLUTION = 10


@dataclass(frozen=True, eq=False)
class Roc:
    """Rates at every distinct threshold, from "nothing is positive" to "everything is"; `thresholds` starts at +∞."""

    fpr: Floats
    tpr: Floats
    thresholds: Floats
    positives: int
    negatives: int

    @property
    def auc(self) -> float:
        """The area under the curve: ½ for scores that know nothing."""
        return float(np.trapezoid(self.tpr, self.fpr))

    @property
    def balanced_accuracy(self) -> float:
        """The largest ½ (TPR + 1 − FPR) of any threshold: that of an attacker who knows the best one."""
        return float((0.5 * (self.tpr + 1 - self.fpr)).max())

    def tpr_at(self, fpr: float) -> float:
        """The largest true-positive rate of a threshold whose false-positive rate does not exceed `fpr`."""
        check_rate(fpr)
        return float(self.tpr[self.fpr <= fpr].max())

    def resolvable(self, fpr: float) -> bool:
        """Whether `fpr` would let at least ten negatives through: below that a rate is noise."""
        check_rate(fpr)
        return fpr * self.negatives >= RESOLUTION


def roc(positive: ArrayLike, negative: ArrayLike) -> Roc:
    """The curve of two sets of scores.

    >>> roc([2.0, 1.0], [1.0, 0.0]).auc
    0.875
    """
    high, low = finite_scores(positive, "positive"), finite_scores(negative, "negative")
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
        thresholds=np.append(np.inf, ranked[last_of_tie]),
        positives=len(high),
        negatives=len(low),
    )


def finite_scores(scores: ArrayLike, what: str) -> Floats:
    """The scores as a flat array, if there are any and all of them are numbers."""
    found = np.asarray(scores, dtype=np.float64).ravel()
    if found.size == 0:
        raise InputError(f"there is no {what} score; give at least one")
    wrong = np.flatnonzero(~np.isfinite(found))
    if wrong.size:
        raise InputError(
            f"{what} score {wrong[0]} of {found.size} is {found[wrong[0]]}; remove it or find out where it came from"
        )
    return found


def check_rate(rate: float) -> None:
    """Refuse what is no rate."""
    if not 0 <= rate <= 1:
        raise InputError(f"the false-positive rate is {rate}; it must lie between 0 and 1")
