"""Which points a network memorises, judged for every shadow by the other shadows only.

A slice chosen by a model's own confidence would hold the points that model is surest of, and the audit on it would
measure the choice. So each shadow has a slice of its own, from which it is left out.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...errors import DataError, InputError
from .leave_shadow_out import counterpart
from .shadow_design import Mask

Measure = Literal["gap", "training_confidence"]


def memorisation(scores: ArrayLike, *, trained: ArrayLike, measure: Measure = "gap") -> NDArray[np.float64]:
    """How much a point is memorised by all shadows but one, shape (shadows, points): row s leaves shadow s out.

    `scores`: confidences of the *original* models, one row a shadow; `trained`: which of them trained on a point.
    "gap": mean confidence of those that trained on it less that of those that did not, the difference the point itself
    makes. "training_confidence": the first mean alone, which also ranks high what is merely easy; some published slices
    are cut that way. With shadow s one of the other kind is left out, its counterpart (see `leave_shadow_out`): else a
    shadow that trained on a point would rank it by a noisier mean than one that did not, and where nothing leaks the
    area of a slice would fall below ½. NaN where no other shadow trained on the point, or (gap) none did not.
    """
    values, seen = np.asarray(scores, dtype=np.float64), np.asarray(trained)
    if values.ndim != 2 or seen.shape != values.shape or seen.dtype != np.bool_:
        raise InputError(
            f"scores of shape {values.shape} and `trained` of shape {seen.shape} and type {seen.dtype};"
            " (shadows, points) and a boolean mask of the same shape are needed"
        )
    if not np.isfinite(values).all():
        raise DataError(f"{np.count_nonzero(~np.isfinite(values))} scores are not finite; leave that shadow out")
    if measure not in ("gap", "training_confidence"):
        raise InputError(f"measure {measure!r}; known: gap, training_confidence")
    partner = counterpart(seen, ~seen)
    inside = _mean_of_others(values, seen, partner)
    return inside if measure == "training_confidence" else inside - _mean_of_others(values, ~seen, partner)


def most_memorised(memorised: NDArray[np.float64], share: float) -> Mask:
    """The `share` of points that each row ranks highest, shape (shadows, points): for `Audit.restricted`.

    At least one point; points without a value are never chosen.
    """
    if not 0 < share <= 1:
        raise InputError(f"the share is {share}; it must lie in (0, 1], for example 0.01")
    ranked = np.where(np.isnan(memorised), -np.inf, memorised)
    count = max(1, round(share * ranked.shape[1]))
    top = np.argpartition(-ranked, count - 1, axis=1)[:, :count]
    chosen = np.zeros(ranked.shape, dtype=bool)
    np.put_along_axis(chosen, top, True, axis=1)
    return chosen & ~np.isnan(memorised)


def _mean_of_others(values: NDArray[np.float64], mask: Mask, partner: NDArray[np.int64]) -> NDArray[np.float64]:
    """The mean over marked rows without the row itself or, for a row that is not marked, without its partner; NaN where
    there is none.
    """
    kept = np.where(mask, values, 0.0)
    count = np.maximum(mask.sum(0) - 1, 0)
    own = np.where(mask, kept, np.take_along_axis(kept, partner, 0))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(count > 0, (kept.sum(0) - own) / count, np.nan), dtype=np.float64)
