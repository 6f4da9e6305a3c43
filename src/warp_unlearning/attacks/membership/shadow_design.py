"""Which shadow trains on which points, which of them each of its unlearned models forgets, and which are memorised.

Shadows come in complementary pairs: the second trains on exactly the points the first does not, so that every point
is trained on by half of them. The forget sets of a shadow are disjoint parts of its training half, so that with parts
that fill it every point is forgotten exactly once by every shadow that trained on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...errors import DataError, InputError

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Measure = Literal["gap", "training_confidence"]


@dataclass(frozen=True, eq=False)
class ShadowDesign:
    """`trained`: shape (shadows, points). `part`: the forget set a point is in, −1 for none; the same shape.

    Unlearned models are numbered shadow by shadow: model s·forget_sets + k forgot part k of shadow s.
    """

    trained: Mask
    part: NDArray[np.int16]
    forget_sets: int

    @property
    def groups(self) -> NDArray[np.int64]:
        """The shadow each unlearned model descends from, shape (models,)."""
        return np.repeat(np.arange(len(self.trained)), self.forget_sets)

    @property
    def forgotten(self) -> Mask:
        """Whether an unlearned model was asked to forget a point, shape (models, points)."""
        asked = self.part[:, None, :] == np.arange(self.forget_sets, dtype=np.int16)[None, :, None]
        return np.asarray(asked.reshape(-1, self.part.shape[1]), dtype=bool)

    @property
    def never(self) -> Mask:
        """Whether an unlearned model's shadow never saw a point, shape (models, points)."""
        return np.repeat(~self.trained, self.forget_sets, axis=0)

    @property
    def retained(self) -> Mask:
        """Whether an unlearned model trained on a point and was not asked to forget it, shape (models, points)."""
        return ~self.never & ~self.forgotten


def shadow_design(
    points: int, *, shadows: int, forget_sets: int, generator: np.random.Generator, share: float = 1.0
) -> ShadowDesign:
    """Complementary shadows; `share` of every training half is cut into `forget_sets` disjoint parts.

    Parts of one shadow differ in size by one point at most. The design depends on the generator alone.
    """
    if shadows < 2 or shadows % 2:
        raise InputError(f"{shadows} shadows; complementary pairs need an even number, at least 2")
    if not 0 < share <= 1:
        raise InputError(f"the share of a training half that is forgotten is {share}; it must lie in (0, 1]")
    if forget_sets < 1 or round(share * (points // 2)) < forget_sets:
        raise InputError(
            f"{forget_sets} forget sets from {share} of the {points // 2} points a shadow trains on; each needs a point"
        )
    trained = np.zeros((shadows, points), dtype=bool)
    part = np.full((shadows, points), -1, dtype=np.int16)
    for first in range(0, shadows, 2):
        order = generator.permutation(points)
        halves = order[: points // 2], order[points // 2 :]
        for shadow, half in zip((first, first + 1), halves, strict=True):
            trained[shadow, half] = True
            asked = generator.permutation(half)[: round(share * len(half))]
            part[shadow, asked] = np.arange(len(asked)) % forget_sets
    return ShadowDesign(trained, part, forget_sets)


def complement(never: Mask) -> NDArray[np.int64]:
    """The one shadow that trained on exactly the points that a shadow never saw, itself where there is not just one.

    `never`: the points that each shadow never saw, all points of the audit, shape (shadows, points).
    """
    sign = np.where(never, np.float32(1), np.float32(-1))
    opposite = sign @ sign.T == -never.shape[1]
    return np.where(opposite.sum(1) == 1, opposite.argmax(1), np.arange(len(never)))


def counterpart(first: Mask, second: Mask, complements: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each (shadow, point) of one kind the shadow of the other kind that is left out with it, the same shape: its
    complement where that holds the other kind, because scores of complements are anti-correlated; else the r-th shadow
    of one kind goes with the r-th of the other, cyclically where one kind is rarer.

    `first` and `second` say which shadows hold each kind; entries of shadows that hold neither mean nothing.
    """
    found = np.zeros(first.shape, dtype=np.int64)
    for own, other in ((first, second), (second, first)):
        rank = np.cumsum(own, axis=0) - 1
        ranked = np.argsort(~other, axis=0, kind="stable")
        cyclic = np.maximum(rank, 0) % np.maximum(other.sum(0), 1)
        left_out = np.where(other[complements], complements[:, None], np.take_along_axis(ranked, cyclic, 0))
        found = np.where(own, left_out, found)
    return found


def memorisation(scores: ArrayLike, *, trained: ArrayLike, measure: Measure = "gap") -> Floats:
    """How much a point is memorised by all shadows but one, shape (shadows, points): row s leaves shadow s out.

    A slice chosen by a model's own confidence would hold the points that model is surest of, and the audit on it would
    measure the choice. `scores`: confidences of the *original* models, one row a shadow; `trained`: which of them
    trained on a point. "gap": mean confidence of those that trained on it less that of those that did not, the
    difference the point itself makes. "training_confidence": the first mean alone, which also ranks high what is merely
    easy; some published slices are cut that way. With shadow s one of the other kind is left out, its counterpart: else
    a shadow that trained on a point would rank it by a noisier mean than one that did not, and where nothing leaks the
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
    partner = counterpart(seen, ~seen, complement(~seen))
    inside = _mean_of_others(values, seen, partner)
    return inside if measure == "training_confidence" else inside - _mean_of_others(values, ~seen, partner)


def most_memorised(memorised: Floats, share: float) -> Mask:
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


def _mean_of_others(values: Floats, mask: Mask, partner: NDArray[np.int64]) -> Floats:
    """The mean over marked rows without the row itself or, for a row that is not marked, without its partner; NaN where
    there is none.
    """
    kept = np.where(mask, values, 0.0)
    count = np.maximum(mask.sum(0) - 1, 0)
    own = np.where(mask, kept, np.take_along_axis(kept, partner, 0))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(count > 0, (kept.sum(0) - own) / count, np.nan), dtype=np.float64)
