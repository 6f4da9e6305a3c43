"""U-LiRA: can the unlearned models of a method tell points they forgot from points they never saw?

Arrays have one row a model and one column a point; scores are logit-scaled confidences (`confidence`) or anything
that is close to Gaussian over models. The models of one shadow are siblings: `groups` names the shadow of each.

For a point, μ₁, σ₁ are fitted to the scores of models that forgot it and μ₀, σ₀ to those of models that never saw it;
the score of an observation x is log N(x; μ₁, σ₁²) − log N(x; μ₀, σ₀²). What is left out of both fits is

- every model of the observation's shadow, because siblings resemble each other;
- one shadow of the other kind, its counterpart. That is the shadow's complement, trained on exactly the points it
  never saw, where there is one and it holds the other kind: scores of complements are anti-correlated, and one left in
  the opposite fit would push it away from the observation and feign a leak. Else the r-th shadow that forgot the point
  goes with the r-th that never saw it (cyclically where one kind is rarer). Without a counterpart a forgotten
  observation would face a forgotten fit with one shadow fewer, hence a noisier one, and a never-seen observation the
  reverse: with 16 shadows and nothing to find the area under the curve would be 0.49, not ½. With it all fits of a
  point hold equally many shadows, and where nothing leaks its observations of both kinds have scores of one and the
  same distribution.

What remains is of the order 1/points, from pairs of observations of one point, which sit in each other's fits: an area
of 0.4992 with 300 points. And where shadows forget only a part of what they trained on, points that many of them forgot
have better fits, hence higher scores, and a larger part in the forgotten observations than in those never seen: an area
of 0.51 with 16 shadows that forget 40 % of their half, 0.50 with 64.

Sums, squares and counts by shadow give all fits at once: total less own less counterpart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...errors import DataError, InputError, nearest
from ...stats.comparison import Comparison
from .audit import Audit, Observations
from .shadow_design import Floats, Mask, complement, counterpart

Variance = Literal["auto", "per_point", "pooled", "scaled"]
Kinds = tuple[Mask, Mask]  # forgotten, never seen

# From this many observations of the rarer kind on, "auto" trusts the variance of every point by itself.
MANY = 64
# Columns worked on at once: a few tens of megabytes for 640 models.
CHUNK = 2048
# What "scaled" takes the common scale to be worth, in observations.
PRIOR = 4.0


def shadow_audit(
    scores: ArrayLike,
    *,
    forgotten: ArrayLike,
    never: ArrayLike,
    groups: ArrayLike | None = None,
    variance: Variance = "auto",
) -> Audit:
    """Scores every forgotten and every never-seen observation by its log likelihood ratio, and audits the scores.

    `scores`, `forgotten`, `never`: shape (models, points), the latter two boolean and disjoint. `groups`: the shadow
    each model descends from, shape (models,); None: every model is its own. `variance`: "per_point", "pooled",
    "scaled" (see `variances`) or "auto", which is "per_point" where the median point has at least 64 observations of
    the rarer kind and "scaled" below.

    A point that fewer than two shadows forgot, or fewer than two never saw ("per_point": fewer than three
    observations), has nothing to be fitted on and is dropped; the audit's notes say how many were.
    """
    values, kinds, labels = _checked(scores, forgotten, never, groups)
    names, rows = np.unique(labels, return_inverse=True)
    if len(names) < 2:
        raise InputError(
            "all models belong to one shadow group; with it left out there is nothing to fit, so train more"
        )
    if variance not in get_args(Variance):
        raise InputError(f"variance {variance!r}; {nearest(str(variance), get_args(Variance))}")
    fits = _fit(values, kinds, rows, len(names))
    used, notes = _usable(fits, kinds, variance)
    if variance == "auto":
        rarer = min(float(np.median(count[:, used].max(0))) for count in fits.count)
        variance = "per_point" if rarer >= MANY else "scaled"
    positive, negative = _observe(values, kinds, rows, used, fits, variances(fits, used, variance))
    return Audit(
        positive=positive,
        negative=negative,
        shadows=names,
        points=values.shape[1],
        refit=1 + float(np.mean((1 / fits.shadows_left[:, used]).sum(0))),
        variance=variance,
        notes=notes,
    )


def audit_against_originals(
    scores: ArrayLike,
    *,
    forgotten: ArrayLike,
    groups: ArrayLike,
    original_scores: ArrayLike,
    original_never: ArrayLike,
    original_groups: ArrayLike | None = None,
    variance: Variance = "auto",
) -> Audit:
    """The other null: forgotten points under unlearned models against never-seen points under *original* models.

    An original model that never saw a point is what retraining without it would give, so this asks whether unlearning
    is as good as retraining; it also sees what unlearning does to points it was never asked about. `original_*` have
    one row a shadow; `original_groups` are labels as in `groups`, 0, 1, 2, ... unless given.
    """
    first, second = np.asarray(scores), np.asarray(original_scores)
    _same_points(first, second)
    own = _labels(groups, len(first))
    labels = _labels(np.arange(len(second)) if original_groups is None else original_groups, len(second))
    asked, unseen = _mask(forgotten, "forgotten", first.shape), _mask(original_never, "original_never", second.shape)
    return shadow_audit(
        np.concatenate([first, second]),
        forgotten=np.concatenate([asked, np.zeros_like(unseen)]),
        never=np.concatenate([np.zeros_like(asked), unseen]),
        groups=np.concatenate([own, labels]),
        variance=variance,
    )


@dataclass(frozen=True, eq=False)
class RetainLeakage:
    """Retained against never-seen points before and after unlearning; `change.difference` is *after − before*."""

    before: Audit
    after: Audit
    change: Comparison


def retain_leakage(
    scores: ArrayLike,
    *,
    retained: ArrayLike,
    never: ArrayLike,
    groups: ArrayLike,
    original_scores: ArrayLike,
    original_trained: ArrayLike,
    original_groups: ArrayLike | None = None,
    variance: Variance = "auto",
) -> RetainLeakage:
    """Whether unlearning exposes points nobody asked to forget.

    Positives are points that were trained on and kept, negatives those never seen: once under the unlearned models,
    once under the originals (`original_trained`: shape (shadows, points)). The test of `shadow_audit` on either.
    """
    _same_points(np.asarray(scores), np.asarray(original_scores))
    _labels(groups, len(np.asarray(scores)))
    trained = _mask(original_trained, "original_trained", np.asarray(original_scores).shape)
    after = shadow_audit(scores, forgotten=retained, never=never, groups=groups, variance=variance)
    before = shadow_audit(original_scores, forgotten=trained, never=~trained, groups=original_groups, variance=variance)
    return RetainLeakage(before, after, after.compare(before))


@dataclass(frozen=True, eq=False)
class Fits:
    """Means, sums of squares about them and counts of both kinds after leaving out, shape (shadows, points).

    `shadows_left`: how many shadows hold each of the two fits of a point, shape (2, points).
    """

    mean: tuple[Floats, Floats]
    squares: tuple[Floats, Floats]
    count: tuple[Floats, Floats]
    centre: Floats
    shadows_left: NDArray[np.int64]


def variances(fits: Fits, used: Mask, how: Variance) -> tuple[Floats, Floats]:
    """σ₁² and σ₀² for every (shadow, point); `used` says which points take part in what is pooled, shape (points,).

    - "pooled": one for each kind, from all points, Σ squares / Σ (count − 1), the shadow left out there too;
    - "per_point": squares / (count − 1); a point without any spread has the pooled one;
    - "scaled": the pooled one of each kind times one scale for a point, shared by both kinds and drawn towards 1:
      k = (squares₁/σ₁² + squares₀/σ₀² + 4) / (count₁ − 1 + count₀ − 1 + 4).
    """
    freedom = [np.maximum(count - 1, 0) for count in fits.count]
    common = [
        (squares[:, used].sum(1) / np.maximum(free[:, used].sum(1), 1))[:, None]
        for squares, free in zip(fits.squares, freedom, strict=True)
    ]
    # A kind with one observation a point or no spread borrows the other's. One observation differs from its own mean by
    # rounding, so that its squares need not be zero.
    known = [free[:, used].sum(1, keepdims=True) > 0 for free in freedom]
    common = [
        np.where(has & (own > 0), own, other) for has, own, other in zip(known, common, common[::-1], strict=True)
    ]
    # Equal scores may differ from their own mean by rounding.
    least = (1e-12 * np.abs(fits.centre[used]).max()) ** 2
    if not all((pool > least).all() for pool in common):
        raise DataError("every point has the same score in all models; an attack needs scores that vary between models")
    shape = fits.mean[0].shape
    if how == "pooled":
        return np.broadcast_to(common[0], shape), np.broadcast_to(common[1], shape)
    if how == "per_point":
        first, second = (
            np.where((free > 0) & (squares > 1e-12 * pool), squares / np.maximum(free, 1), pool)
            for squares, free, pool in zip(fits.squares, freedom, common, strict=True)
        )
        return first, second
    spread = sum(squares / pool for squares, pool in zip(fits.squares, common, strict=True))
    scale = (spread + PRIOR) / (freedom[0] + freedom[1] + PRIOR)
    return common[0] * scale, common[1] * scale


def _fit(scores: NDArray[np.floating], kinds: Kinds, rows: NDArray[np.int64], shadows: int) -> Fits:
    order = np.argsort(rows, kind="stable")
    starts = np.searchsorted(rows[order], np.arange(shadows))
    complements = complement(np.logical_or.reduceat(kinds[1][order], starts, axis=0))
    parts = [_fit_chunk(scores, kinds, order, starts, complements, columns) for columns in _chunks(scores.shape[1])]
    joined = [np.concatenate(arrays, axis=-1) for arrays in zip(*parts, strict=True)]
    mean, squares, count = ((joined[i], joined[i + 1]) for i in (0, 2, 4))
    return Fits(mean, squares, count, centre=joined[6], shadows_left=joined[7].astype(np.int64))


def _fit_chunk(
    scores: NDArray[np.floating],
    kinds: Kinds,
    order: NDArray[np.int64],
    starts: NDArray[np.int64],
    complements: NDArray[np.int64],
    columns: slice,
) -> tuple[Floats, ...]:
    x = scores[:, columns][order].astype(np.float64)
    masks = [kind[:, columns][order] for kind in kinds]
    either = masks[0] | masks[1]
    # Squares of what is far from 0 would lose the variance to rounding.
    centre = np.where(either, x, 0.0).sum(0) / np.maximum(either.sum(0), 1)
    x -= centre
    sums = [
        [np.add.reduceat(np.where(mask, power, 0.0), starts, axis=0) for power in (1.0, x, x * x)] for mask in masks
    ]
    has = [counts > 0 for counts, _, _ in sums]
    partner = counterpart(has[0], has[1], complements)
    means, squares, counts = [], [], []
    for kind, triple in enumerate(sums):
        # A shadow that holds this kind leaves itself out, one that holds only the other its counterpart.
        drop = ~has[kind] & has[1 - kind]
        count, first, second = (
            total.sum(0) - total - np.where(drop, np.take_along_axis(total, partner, 0), 0.0) for total in triple
        )
        mean = first / np.maximum(count, 1)
        means.append(mean)
        squares.append(np.maximum(second - first * mean, 0.0))
        counts.append(count)
    left = np.stack([np.maximum(held.sum(0) - 1, 0) for held in has]).astype(np.float64)
    return (*means, *squares, *counts, centre, left)


def _chunks(points: int) -> Iterator[slice]:
    return (slice(start, min(start + CHUNK, points)) for start in range(0, points, CHUNK))


def _observe(
    values: NDArray[np.floating],
    kinds: Kinds,
    rows: NDArray[np.int64],
    used: Mask,
    fits: Fits,
    spread: tuple[Floats, Floats],
) -> tuple[Observations, Observations]:
    """The log likelihood ratios of both kinds, run of columns by run of columns."""
    found: tuple[list[Observations], list[Observations]] = ([], [])
    for columns in _chunks(values.shape[1]):
        for kind, kept in zip(kinds, found, strict=True):
            model, point = np.nonzero(kind[:, columns] & used[columns])
            point += columns.start
            shadow, z = rows[model], values[model, point].astype(np.float64) - fits.centre[point]
            logs = [
                np.log(variance[shadow, point]) + (z - mean[shadow, point]) ** 2 / variance[shadow, point]
                for mean, variance in zip(fits.mean, spread, strict=True)
            ]
            kept.append(Observations(0.5 * (logs[1] - logs[0]), point.astype(np.int32), shadow.astype(np.int32)))
    first, second = (Observations.joined(parts) for parts in found)
    return first, second


def _usable(fits: Fits, kinds: Kinds, variance: Variance) -> tuple[Mask, tuple[str, ...]]:
    """Which points can be scored, and a sentence on those that cannot."""
    used = np.asarray((fits.shadows_left >= 1).all(0), dtype=bool)
    if variance == "per_point":
        # Only cells that hold an observation need a fit; the others have at least as much left.
        used &= (fits.count[0].min(0) >= 2) & (fits.count[1].min(0) >= 2)
    asked = kinds[0].any(0) & kinds[1].any(0)
    if not used.any():
        raise InputError(
            f"none of the {len(used)} points has two shadows that forgot it and two that never saw it"
            f"{', with observations enough for a variance' if variance == 'per_point' else ''}; audit more shadows"
        )
    dropped = int(np.count_nonzero(~used))
    if not dropped:
        return used, ()
    return used, (
        f"{dropped} of {len(used)} points were dropped: fewer than 2 shadows forgot or never saw each of them"
        f" ({int(np.count_nonzero(~asked))} lack one kind altogether).",
    )


def _checked(
    scores: ArrayLike, forgotten: ArrayLike, never: ArrayLike, groups: ArrayLike | None
) -> tuple[NDArray[np.floating], Kinds, NDArray[np.int64]]:
    values = np.asarray(scores)
    if values.ndim != 2 or values.size == 0:
        raise InputError(f"scores of shape {values.shape}; an array of shape (models, points) is needed")
    if not np.issubdtype(values.dtype, np.floating):
        values = values.astype(np.float64)
    kinds = _mask(forgotten, "forgotten", values.shape), _mask(never, "never", values.shape)
    both = int(np.count_nonzero(kinds[0] & kinds[1]))
    if both:
        raise InputError(f"{both} observations are both forgotten and never seen; the masks must not overlap")
    for columns in _chunks(values.shape[1]):
        wrong = (kinds[0][:, columns] | kinds[1][:, columns]) & ~np.isfinite(values[:, columns])
        if wrong.any():
            model, point = np.argwhere(wrong)[0]
            raise DataError(
                f"the score of model {model} for point {point + columns.start} is {values[:, columns][model, point]};"
                " leave diverged models out of the masks, or find out where it came from"
            )
    return values, kinds, _labels(np.arange(len(values)) if groups is None else groups, len(values))


def _mask(mask: ArrayLike, what: str, shape: tuple[int, ...]) -> Mask:
    found = np.asarray(mask)
    if found.dtype != np.bool_:
        raise InputError(f"`{what}` holds {found.dtype}; a boolean mask is needed")
    if found.shape != shape:
        raise InputError(f"`{what}` has shape {found.shape} and the scores {shape}; they must agree")
    return found


def _labels(groups: ArrayLike, models: int) -> NDArray[np.int64]:
    found = np.asarray(groups)
    if found.shape != (models,) or not np.issubdtype(found.dtype, np.integer):
        raise InputError(
            f"groups of shape {found.shape} and type {found.dtype}; one integer for each of {models} models is needed"
        )
    return found.astype(np.int64)


def _same_points(first: NDArray[np.generic], second: NDArray[np.generic]) -> None:
    if first.ndim != 2 or second.ndim != 2 or first.shape[1] != second.shape[1]:
        raise InputError(
            f"scores of shape {first.shape} and originals of shape {second.shape}; their points must agree"
        )
