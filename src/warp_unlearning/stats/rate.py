"""A true-positive rate at a small false-positive rate, or the statement that the data cannot resolve it."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from .intervals import Estimate, proportion
from .roc import RESOLUTION, Roc

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


def independent_rate(curve: Roc, fpr: float, *, level: float = 0.95) -> Rate:
    """The rate of a curve of independent scores, with the Clopper-Pearson interval at its threshold.

    The threshold is taken as given; scores that share models or shadows need the intervals of an audit instead.
    """
    if not curve.resolvable(fpr):
        return Rate(fpr, None, curve.negatives)
    return Rate(
        fpr, proportion(round(curve.tpr_at(fpr) * curve.positives), curve.positives, level=level), curve.negatives
    )
