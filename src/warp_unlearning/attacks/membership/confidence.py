"""How sure a model is of a point's label, as a score that is close to Gaussian over models.

φ = log p_y − log Σ_{c≠y} p_c = z_y − logsumexp_{c≠y} z_c, from logits z, so that nothing is rounded to 0 or 1 on the
way.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...errors import DataError, InputError


def logit_confidence(logits: ArrayLike, labels: ArrayLike) -> NDArray[np.float64]:
    """φ of every point, shape (...,), from logits of shape (..., classes) and labels of shape (...,).

    Computed in float64 and finite for all finite logits; float32 is enough to store it.

    >>> logit_confidence([[800.0, -800.0]], [0])
    array([1600.])
    """
    values, truth = _checked(logits, labels)
    own = np.take_along_axis(values, truth[..., None], -1)[..., 0]
    others = values.copy()
    np.put_along_axis(others, truth[..., None], -np.inf, -1)
    top = others.max(-1)
    rest = top + np.log(np.exp(others - top[..., None]).sum(-1))
    return np.asarray(own - rest, dtype=np.float64)


def correctness(logits: ArrayLike, labels: ArrayLike) -> NDArray[np.float64]:
    """1 where the label has the largest logit, 0 elsewhere: the weaker score, one bit of what `logit_confidence` knows.

    A label that shares the largest logit with another class counts as not found.

    >>> correctness([[2.0, 1.0], [2.0, 1.0]], [0, 1])
    array([1., 0.])
    """
    values, truth = _checked(logits, labels)
    own = np.take_along_axis(values, truth[..., None], -1)[..., 0]
    others = values.copy()
    np.put_along_axis(others, truth[..., None], -np.inf, -1)
    return np.asarray(own > others.max(-1), dtype=np.float64)


def _checked(logits: ArrayLike, labels: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    values, truth = np.asarray(logits, dtype=np.float64), np.asarray(labels)
    if values.ndim < 1 or values.shape[:-1] != truth.shape:
        raise InputError(f"logits of shape {values.shape} and labels of shape {truth.shape}; labels lack the last axis")
    if values.shape[-1] < 2:
        raise InputError(f"{values.shape[-1]} class; confidence against other classes needs at least 2")
    if not np.issubdtype(truth.dtype, np.integer):
        raise InputError(f"labels of type {truth.dtype}; they must be integers")
    if truth.size and not (truth.min() >= 0 and truth.max() < values.shape[-1]):
        raise DataError(
            f"labels from {truth.min()} to {truth.max()} with {values.shape[-1]} classes; find the wrong ones"
        )
    if not np.isfinite(values).all():
        raise DataError(f"{np.count_nonzero(~np.isfinite(values))} logits are not finite; the model has diverged")
    return values, truth.astype(np.int64)
