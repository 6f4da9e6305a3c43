"""Scores in half precision: a study keeps thousands of rows of them, and two bytes a score are enough."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

_LARGEST = float(np.finfo(np.float16).max)


def as_half(values: ArrayLike) -> NDArray[np.float16]:
    """`values` rounded to float16, by at most 2**-11 of their size (2**-25 where they are below 2**-14).

    Finite values beyond ±65504 become that number; infinities and NaN stay what they are.

    >>> as_half([8.001, -1e9, np.inf]).tolist()
    [8.0, -65504.0, inf]
    """
    exact = np.asarray(values, dtype=np.float64)
    held = np.where(np.isfinite(exact), np.clip(exact, -_LARGEST, _LARGEST), exact)
    return held.astype(np.float16)
