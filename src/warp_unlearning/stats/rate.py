"""A true-positive rate at a small false-positive rate, or the statement that the data cannot resolve it."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .clusters import Spread, share_interval
from .influence import rate_influence
from .intervals import Estimate, proportion
from .roc import RESOLUTION

# The false-positive rates at which audits are reported.
RATES = (0.0001, 0.001, 0.01, 0.05)


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
    parts = [
        float(np.square(psi).sum() * n / (n - 1)) for psi, n in ((found.positive, high), (found.negative, low)) if n > 1
    ]
    if 0 < found.value < 1 and sum(parts) > 0:
        wide = share_interval(found.value, Spread(sum(parts), float(min(high, low) - 1)), level=level)
        return Rate(fpr, Estimate(found.value, min(exact.low, wide.low), max(exact.high, wide.high)), low)
    return Rate(fpr, exact, low)
