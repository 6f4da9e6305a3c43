"""U-LiRA: can the unlearned models of a method tell points they forgot from points they never saw?

Arrays have one row a model and one column a point; scores are logit-scaled confidences (`confidence`) or anything
that is close to Gaussian over models. The models of one shadow are siblings: `groups` names the shadow of each, and
fits leave out whole shadows (`leave_shadow_out`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...errors import DataError, InputError, nearest
from ...stats.comparison import Comparison
from .audit import Audit, Observations
from .leave_shadow_out import Fits, Variance, chunks, fit, log_ratio, variances
from .shadow_design import Mask

# From this many observations of the rarer kind on, "auto" trusts the variance of every point by itself.
MANY = 64


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
    "scaled" (see `leave_shadow_out.variances`) or "auto", which is "per_point" where the median point has at least 64
    observations of the rarer kind and "scaled" below.

    A point that fewer than two shadows forgot, or fewer than two never saw ("per_point": fewer than three
    observations), has nothing to be fitted on and is dropped; the audit's notes say how many were.
    """
    values, kinds, labels = _checked(scores, forgotten, never, groups)
    names, rows = np.unique(labels, return_inverse=True)
    if len(names) < 2:
        raise InputError(
            "all models belong to one shadow group; with it left out there is nothing to fit, so train more"
        )
    order = np.argsort(rows, kind="stable")
    starts = np.searchsorted(rows[order], np.arange(len(names)))
    fits = fit(values, kinds, order, starts)
    used, notes = _usable(fits, kinds, variance)
    chosen = _choose(variance, fits, used)
    spread = variances(fits, used, chosen)
    positive, negative = _observe(values, kinds, rows, used, fits, spread)
    return Audit(
        positive=positive,
        negative=negative,
        shadows=names,
        points=values.shape[1],
        refit=1 + float(np.mean((1 / fits.shadows_left[:, used]).sum(0))),
        variance=chosen,
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


def _observe(
    values: NDArray[np.floating],
    kinds: tuple[Mask, Mask],
    rows: NDArray[np.int64],
    used: Mask,
    fits: Fits,
    spread: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> tuple[Observations, Observations]:
    """The scored observations of both kinds, run of columns by run of columns."""
    found: tuple[list[Observations], list[Observations]] = ([], [])
    for columns in chunks(values.shape[1]):
        for kind, kept in zip(kinds, found, strict=True):
            model, point = np.nonzero(kind[:, columns] & used[columns])
            point += columns.start
            shadow = rows[model]
            ratio = log_ratio(values[model, point].astype(np.float64), shadow, point, fits, spread)
            kept.append(Observations(ratio, point.astype(np.int32), shadow.astype(np.int32)))
    first, second = (_joined(parts) for parts in found)
    return first, second


def _joined(parts: list[Observations]) -> Observations:
    return Observations(
        np.concatenate([part.scores for part in parts]),
        np.concatenate([part.points for part in parts]),
        np.concatenate([part.shadows for part in parts]),
    )


def _usable(fits: Fits, kinds: tuple[Mask, Mask], variance: Variance) -> tuple[Mask, tuple[str, ...]]:
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


def _choose(variance: Variance, fits: Fits, used: Mask) -> Variance:
    known: tuple[Variance, ...] = ("auto", "per_point", "pooled", "scaled")
    if variance not in known:
        raise InputError(f"variance {variance!r}; {nearest(str(variance), known)}")
    if variance != "auto":
        return variance
    rarer = min(float(np.median(count[:, used].max(0))) for count in fits.count)
    return "per_point" if rarer >= MANY else "scaled"


def _checked(
    scores: ArrayLike, forgotten: ArrayLike, never: ArrayLike, groups: ArrayLike | None
) -> tuple[NDArray[np.floating], tuple[Mask, Mask], NDArray[np.int64]]:
    values = np.asarray(scores)
    if values.ndim != 2 or values.size == 0:
        raise InputError(f"scores of shape {values.shape}; an array of shape (models, points) is needed")
    if not np.issubdtype(values.dtype, np.floating):
        values = values.astype(np.float64)
    kinds = _mask(forgotten, "forgotten", values.shape), _mask(never, "never", values.shape)
    both = int(np.count_nonzero(kinds[0] & kinds[1]))
    if both:
        raise InputError(f"{both} observations are both forgotten and never seen; the masks must not overlap")
    for columns in chunks(values.shape[1]):
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
