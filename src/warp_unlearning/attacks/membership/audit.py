"""The outcome of a membership audit: scores of positives and negatives, and what can be said from them.

Every interval treats the observations as a table of shadows × points (`stats.clusters`): the models of a shadow are
siblings, and the same models score every point, so that neither observations nor points are independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...stats.area import LEVEL
from ...stats.clusters import TwoWay, cell_sums, two_way
from ...stats.comparison import Comparison, compare
from ...stats.evidence import beyond_half, from_half
from ...stats.intervals import Estimate, Spread, check_level, proportion, share_interval
from ...stats.roc import (
    RATES,
    RESOLUTION,
    Rate,
    Roc,
    area,
    area_influence,
    check_rate,
    rate_influence,
    roc,
    threshold,
)
from ...stats.verdict import Evidence
from .shadow_design import Floats, Mask


@dataclass(frozen=True, eq=False)
class Observations:
    """Scores with the column of the point and the row of the shadow each belongs to; three arrays of one length."""

    scores: Floats
    points: NDArray[np.int32]
    shadows: NDArray[np.int32]

    @classmethod
    def joined(cls, parts: Sequence[Observations]) -> Observations:
        """All of several, one after the other."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__))

    def __len__(self) -> int:
        return len(self.scores)

    def kept(self, mask: Mask) -> Observations:
        """Those whose (shadow, point) is marked."""
        here = mask[self.shadows, self.points]
        return Observations(self.scores[here], self.points[here], self.shadows[here])


@dataclass(frozen=True, eq=False)
class Audit:
    """Scores of what was forgotten (positive) and of what was never seen (negative); positives score higher.

    `shadows`: the label of every row; `points`: the number of columns; `refit`: λ of `stats.clusters`; `variance`:
    how the Gaussians' variances were found; `notes`: sentences on what was left out or done in place of what was
    asked.
    """

    positive: Observations
    negative: Observations
    shadows: NDArray[np.int64]
    points: int
    refit: float
    variance: str
    notes: tuple[str, ...] = ()

    @cached_property
    def auc(self) -> float:
        """The area under the curve."""
        return area(self.positive.scores, self.negative.scores)

    @property
    def balanced_accuracy(self) -> float:
        """The largest ½ (TPR + 1 − FPR) of any threshold, chosen on these very scores."""
        return self.roc().balanced_accuracy

    def roc(self) -> Roc:
        """The curve over all observations."""
        return roc(self.positive.scores, self.negative.scores)

    def tpr(self, fpr: float) -> float:
        """The largest true-positive rate whose false-positive rate does not exceed `fpr`, resolved or not."""
        check_rate(fpr)
        return float(np.mean(self.positive.scores > threshold(self._ranked_negative, fpr)))

    def resolvable(self, fpr: float) -> bool:
        """Whether `fpr` would let at least ten negatives through."""
        check_rate(fpr)
        return fpr * len(self.negative) >= RESOLUTION

    def interval(self, level: float = 0.95, *, fpr: float | None = None) -> Estimate:
        """The area under the curve, or the true-positive rate at `fpr`, with an interval over shadows and points.

        It is meant to hold the expected value of an audit with as many shadows, for points drawn like these.
        """
        check_level(level)
        value = self.auc if fpr is None else self.tpr(fpr)
        if 0 < value < 1:
            spread = self.spread(fpr)
            # Scores that tie throughout rank nothing: no variance, and nothing known.
            return share_interval(value, spread, level=level) if spread.variance > 0 else Estimate(value, 0.0, 1.0)
        # Every point agrees, and the influences are all 0: what remains is that this many points agreed.
        seen = len(np.unique(self.positive.points))
        return proportion(seen if value == 1 else 0, seen, level=level)

    def rate(self, fpr: float, *, level: float = 0.95) -> Rate:
        """The true-positive rate at `fpr` with its interval, or the statement that the negatives are too few for it."""
        return Rate(fpr, self.interval(level, fpr=fpr) if self.resolvable(fpr) else None, len(self.negative))

    def spread(self, fpr: float | None = None) -> Spread:
        """The variance of the area, or of the rate at `fpr`, over shadows and points."""
        if fpr is None:
            return self._area_spread
        return two_way([self.influence(fpr)], refit=self.refit).spread([1.0])

    def p_value(self) -> float:
        """Two-sided, for an area of ½."""
        return self.spread().p_value(self.auc - 0.5)

    def evidence(self, name: str, before: Audit | None, *, attacks: int = 1) -> Evidence:
        """The audit as one of so many attacks for `stats.evidence.judge_shadows`, which corrects their p-values.

        `before` audits retained against never-seen points under the originals: what such an attack can see at all.
        """
        found, seen = self.interval(LEVEL), Estimate(0.0, -0.5, 0.5)
        if before is not None:
            seen = from_half(before.interval(1 - (1 - LEVEL) / attacks))
        original = None if before is None else before.interval(LEVEL)
        p, rates = self.p_value(), tuple(self.rate(fpr) for fpr in RATES)
        error = self.spread().error
        return Evidence(name, "new outputs", found, original, (), beyond_half(found), error, p, p, seen, rates)

    def compare(self, other: Audit, *, fpr: float | None = None, level: float = 0.95) -> Comparison:
        """Against another audit of the same shadows and points, by area or by the true-positive rate at `fpr`.

        The difference is this one's value less the other's: as `base.compare(defended)` it is positive where the
        defence helped, and `.reduction` is the share of the advantage over chance that is gone. Areas below ½ are
        turned around, for whoever sees one turns the scores around; rates are taken as they are.
        """
        if fpr is None:
            return self._compare_areas(other, chance=0.5, level=level)
        table = self._joint_table(other, self.influence(fpr), other.influence(fpr))
        return compare(self.tpr(fpr), other.tpr(fpr), table, chance=fpr, level=level)

    def privacy_gain(self, other: Audit, *, level: float = 0.95) -> Estimate | None:
        """By what share 1 − AUC is larger in another audit of the same shadows and points, areas below ½ turned around:

            (1 − AUC_other) / (1 − AUC_self) − 1,

        positive where the other leaks less; None where 1 − AUC_self is not distinguishable from 0.
        """
        gone = self._compare_areas(other, chance=1.0, level=level).reduction
        return None if gone is None else Estimate(-gone.value, -gone.high, -gone.low)

    def _compare_areas(self, other: Audit, *, chance: float, level: float) -> Comparison:
        """Compare max(AUC, 1 − AUC) of both; the reduction is that of its distance from `chance`."""
        base, rest = (max(audit.auc, 1 - audit.auc) for audit in (self, other))
        # An area that is turned around responds to its observations the other way.
        own, others = (audit.influence() if audit.auc >= 0.5 else -audit.influence() for audit in (self, other))
        return compare(base, rest, self._joint_table(other, own, others), chance=chance, level=level)

    def _joint_table(self, other: Audit, own: Floats, others: Floats) -> TwoWay:
        """The table of both influences, with the larger λ of the two audits, which makes the wider interval."""
        if self.points != other.points or not np.array_equal(self.shadows, other.shadows):
            raise InputError(
                f"an audit of {len(self.shadows)} shadows and {self.points} points cannot be paired with one of "
                f"{len(other.shadows)} and {other.points}; both must have the same shadows (by label) and points"
            )
        return two_way([own, others], refit=max(self.refit, other.refit))

    def restricted(self, mask: Mask) -> Audit:
        """The audit of those observations whose (shadow, point) is marked, for example the most memorised."""
        if mask.shape != (len(self.shadows), self.points):
            raise InputError(
                f"a mask of shape {mask.shape}; one of (shadows, points) = {(len(self.shadows), self.points)} is needed"
            )
        positive, negative = self.positive.kept(mask), self.negative.kept(mask)
        if not len(positive) or not len(negative):
            raise InputError(
                f"the mask leaves {len(positive)} positives and {len(negative)} negatives; mark more points"
            )
        return replace(self, positive=positive, negative=negative)

    def influence(self, fpr: float | None = None) -> Floats:
        """What each (shadow, point) contributes to the area, or to the rate at `fpr`, to first order."""
        high, low = self.positive, self.negative
        scores = high.scores, low.scores
        found = area_influence(*scores) if fpr is None else rate_influence(*scores, fpr)
        shape = (len(self.shadows), self.points)
        return cell_sums(found.positive, high.shadows, high.points, shape) + cell_sums(
            found.negative, low.shadows, low.points, shape
        )

    def summary(self, *, level: float = LEVEL) -> dict[str, Any]:
        """Plain data for a results file."""
        return {
            "auc": asdict(self.interval(level)),
            "level": level,
            "p_value": self.p_value(),
            "balanced_accuracy": self.balanced_accuracy,
            "rates": [self.rate(fpr, level=level).summary() for fpr in RATES],
            "positives": len(self.positive),
            "negatives": len(self.negative),
            "shadows": len(self.shadows),
            "points": len(np.unique(np.concatenate([self.positive.points, self.negative.points]))),
            "variance": self.variance,
            "notes": list(self.notes),
        }

    @cached_property
    def _area_spread(self) -> Spread:
        return two_way([self.influence()], refit=self.refit).spread([1.0])

    @cached_property
    def _ranked_negative(self) -> Floats:
        return np.sort(self.negative.scores)
