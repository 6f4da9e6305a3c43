"""Covariance matrices: checks, and the logarithm of |A + B| / |B|."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InputError

Array = NDArray[np.float64]

# Of the largest entry: what rounding leaves of symmetry, and of an eigenvalue that is zero.
_ROUNDING = 1e-9


def covariance(given: ArrayLike, *, size: int, what: str) -> Array:
    """A covariance of shape (size, size) in float64, symmetric and without a negative eigenvalue; or an error."""
    matrix = np.asarray(given, dtype=np.float64)
    if matrix.shape != (size, size):
        raise InputError(f"{what} has shape {matrix.shape}; give a covariance of shape ({size}, {size})")
    if not np.isfinite(matrix).all():
        raise InputError(f"{what} has an entry that is not finite; give finite covariances")
    largest = float(np.abs(matrix).max(initial=0.0))
    if float(np.abs(matrix - matrix.T).max(initial=0.0)) > _ROUNDING * largest:
        raise InputError(f"{what} is not symmetric; give a covariance")
    least = float(np.linalg.eigvalsh(matrix)[0])
    if least < -_ROUNDING * largest:
        raise InputError(f"{what} has the eigenvalue {least:.3g}; a covariance has none below 0")
    return (matrix + matrix.T) / 2


def root_of(matrix: Array, *, what: str) -> Array:
    """The lower Cholesky factor L, A = L Lᵀ, of a positive definite matrix; or an error that names it."""
    try:
        return np.asarray(np.linalg.cholesky(matrix), dtype=np.float64)
    except np.linalg.LinAlgError as error:
        least = float(np.linalg.eigvalsh(matrix)[0])
        raise InputError(
            f"{what} is not positive definite (smallest eigenvalue {least:.3g}); add some variance to every direction"
        ) from error


def log_det_ratio(signal: Array, root: Array) -> Array:
    """The logarithm of |S + N| / |N| for each S of `signal`, shape (..., m, m), N = L Lᵀ given by its root L (m, m).

    Computed as log |I + L⁻¹ S L⁻ᵀ|, so that neither determinant overflows.
    """
    half = np.linalg.solve(root, signal)
    whitened = np.linalg.solve(root, np.swapaxes(half, -1, -2))
    return np.asarray(np.linalg.slogdet(np.eye(len(root)) + whitened)[1])
