"""p-values from scores of examples known to be of the null: valid for any score, whatever its distribution.

Where a score is exchangeable with the n calibration scores, its rank among the n + 1 is uniform. With A calibration
scores beyond it and T equal to it, p = (1 + A + T)/(n + 1) is at most α with a probability of at most α, for every α.
That takes every tie for one score beyond, so p is uniform on the multiples of 1/(n + 1) only where there are no ties.
With U uniform on (0, 1), p = (A + U(1 + T))/(n + 1) is uniform on (0, 1), ties or not, at the price of a drawn number.

The p-values of several scores share the calibration scores, and so depend on each other.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InputError, nearest

Floats = NDArray[np.float64]
Side = Literal["upper", "lower", "two-sided"]


def conformal_p(
    scores: ArrayLike, calibration: ArrayLike, *, side: Side = "upper", generator: np.random.Generator | None = None
) -> Floats:
    """The p-value of each score, shape (n,), against the calibration scores of the null.

    "upper": large scores are evidence; "lower": small ones are; "two-sided": min(1, 2 · the smaller of both). Ties
    count against evidence, which is conservative; with a `generator` they are broken at random.

    >>> conformal_p([0.0, 2.0, 9.0], [1.0, 2.0, 3.0]).tolist()
    [1.0, 0.75, 0.25]
    """
    if side not in get_args(Side):
        raise InputError(f"side is {side!r}; {nearest(str(side), get_args(Side))}")
    found, null = _numbers(scores, "score"), np.sort(_numbers(calibration, "calibration score"))
    if null.size == 0:
        raise InputError("there is no calibration score; give at least one example of the null")
    below = np.searchsorted(null, found, side="left")
    above = null.size - np.searchsorted(null, found, side="right")
    tied = null.size - below - above
    share = np.ones(found.size) if generator is None else 1 - generator.random(found.size)
    upper = (above + share * (1 + tied)) / (null.size + 1)
    if side == "upper":
        return upper
    # The same drawn share from the other end, so that both tails of one draw belong together.
    other = share if generator is None else 1 - share
    lower = (below + other * (1 + tied)) / (null.size + 1)
    return lower if side == "lower" else np.minimum(1.0, 2 * np.minimum(upper, lower))


def _numbers(values: ArrayLike, what: str) -> Floats:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1:
        raise InputError(f"the {what}s have shape {found.shape}; give one number for each example, shape (n,)")
    wrong = np.flatnonzero(~np.isfinite(found))
    if wrong.size:
        raise InputError(
            f"{what} {wrong[0]} of {found.size} is {found[wrong[0]]}; remove it or find out where it came from"
        )
    return found
