"""A mean over independent draws, and how far it may be off."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError


@dataclass(frozen=True)
class MonteCarlo:
    """The mean of `draws` independent draws and its standard error."""

    value: float
    standard_error: float
    draws: int


def mean_of(samples: NDArray[np.float64]) -> MonteCarlo:
    """The mean of samples of shape (n,), n at least 2.

    >>> mean_of(np.array([1.0, 3.0]))
    MonteCarlo(value=2.0, standard_error=1.0, draws=2)
    """
    if samples.ndim != 1 or len(samples) < 2:
        raise InputError(f"the samples have shape {samples.shape}; a standard error needs at least 2 in a row")
    return MonteCarlo(float(samples.mean()), float(samples.std(ddof=1) / np.sqrt(len(samples))), len(samples))
