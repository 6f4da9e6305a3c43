"""Log likelihood ratios of observations under Gaussians fitted without the observation's own shadow, in closed form.

For a point, μ₁, σ₁ are fitted to the scores of models that forgot it and μ₀, σ₀ to those of models that never saw it;
the score of an observation x is log N(x; μ₁, σ₁²) − log N(x; μ₀, σ₀²). What is left out of both fits is

- every model of the observation's shadow, because siblings resemble each other;
- one shadow of the other kind, its counterpart: the r-th shadow that forgot the point goes with the r-th that never saw
  it (cyclically where one kind is rarer). Without it a forgotten observation would face a forgotten fit with one
  shadow fewer, hence a noisier one, and a never-seen observation the reverse: with 16 shadows and nothing to find the
  area under the curve would be 0.49, not ½. With it all fits hold equally many shadows, and where nothing leaks
  observations of both kinds have scores of one and the same distribution. What remains is of the order 1/points, from
  pairs of observations of one point, which sit in each other's fits: an area of 0.4992 with 300 points.

Sums, squares and counts by shadow give all fits at once: total less own less counterpart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from .shadow_design import Mask

Floats = NDArray[np.float64]
Variance = Literal["auto", "per_point", "pooled", "scaled"]

# Columns worked on at once: a few tens of megabytes for 640 models.
CHUNK = 2048
# What "scaled" takes the common scale to be worth, in observations.
PRIOR = 4.0


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


def chunks(points: int) -> Iterator[slice]:
    """Runs of columns."""
    return (slice(start, min(start + CHUNK, points)) for start in range(0, points, CHUNK))


def fit(
    scores: NDArray[np.floating], kinds: tuple[Mask, Mask], order: NDArray[np.int64], starts: NDArray[np.int64]
) -> Fits:
    """Fits for every (shadow, point). `order` sorts models by shadow, `starts` is where each shadow then begins."""
    parts = [_fit_chunk(scores, kinds, order, starts, columns) for columns in chunks(scores.shape[1])]
    joined = [np.concatenate(arrays, axis=-1) for arrays in zip(*parts, strict=True)]
    return Fits(
        mean=(joined[0], joined[1]),
        squares=(joined[2], joined[3]),
        count=(joined[4], joined[5]),
        centre=joined[6],
        shadows_left=joined[7].astype(np.int64),
    )


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


def log_ratio(
    x: Floats,
    shadow: NDArray[np.integer],
    columns: NDArray[np.integer],
    fits: Fits,
    spread: tuple[Floats, Floats],
) -> Floats:
    """The ratio log N(x; μ₁, σ₁²) − log N(x; μ₀, σ₀²) of observations at (shadow, column)."""
    z = x - fits.centre[columns]
    logs = [
        np.log(variance[shadow, columns]) + (z - mean[shadow, columns]) ** 2 / variance[shadow, columns]
        for mean, variance in zip(fits.mean, spread, strict=True)
    ]
    return np.asarray(0.5 * (logs[1] - logs[0]), dtype=np.float64)


def _fit_chunk(
    scores: NDArray[np.floating],
    kinds: tuple[Mask, Mask],
    order: NDArray[np.int64],
    starts: NDArray[np.int64],
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
    partner = counterpart(has[0], has[1])
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


def counterpart(first: Mask, second: Mask) -> NDArray[np.int64]:
    """For each (shadow, point) of one kind the shadow of the other kind that is left out with it, the same shape.

    `first` and `second` say which shadows hold each kind; entries of shadows that hold neither mean nothing.
    """
    found = np.zeros(first.shape, dtype=np.int64)
    for own, other in ((first, second), (second, first)):
        rank = np.cumsum(own, axis=0) - 1
        ranked = np.argsort(~other, axis=0, kind="stable")
        cyclic = np.maximum(rank, 0) % np.maximum(other.sum(0), 1)
        found = np.where(own, np.take_along_axis(ranked, cyclic, 0), found)
    return found
