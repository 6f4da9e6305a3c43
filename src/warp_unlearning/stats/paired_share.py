"""The share of an advantage that is gone, from pairs: the same units measured without and with a defence.

With b and w the means over n pairs, c what chance gives, and s the covariances of the means,

    1 − (w − c) / (b − c),

a ratio, and its interval is Fieller's: all ρ = 1 − share with (w − c − ρ (b − c))² ≤ t² (s_ww − 2ρ s_bw + ρ² s_bb), t
Student's quantile with n − 1 degrees of freedom. That is an interval only where b − c is itself beyond t √s_bb.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InputError
from .clusters import check_level
from .intervals import Estimate
from .tails import student_beyond


def paired_reduction(base: ArrayLike, other: ArrayLike, *, chance: float = 0.5, level: float = 0.95) -> Estimate | None:
    """The share of the base's mean advantage that is gone; None below two pairs, and where that advantage is not
    distinguishable from 0.

    >>> str(paired_reduction([0.70, 0.71, 0.69], [0.60, 0.61, 0.59]))
    '0.500 [0.445, 0.571]'
    """
    check_level(level)
    before, after = np.asarray(base, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if before.shape != after.shape or before.ndim != 1:
        raise InputError(f"{before.shape} values against {after.shape}; give one of each for every pair")
    n = len(before)
    if n < 2:
        return None
    b, w = before.mean() - chance, after.mean() - chance
    (s_bb, s_bw), (_, s_ww) = np.cov(before, after) / n
    t = student_beyond((1 - level) / 2, n - 1)
    # ρ² bb − 2ρ bw + ww ≤ 0
    bb, bw, ww = b * b - t * t * s_bb, b * w - t * t * s_bw, w * w - t * t * s_ww
    if bb <= 0:
        return None
    reach = np.sqrt(max(bw * bw - bb * ww, 0.0))
    return Estimate(float(1 - w / b), float(1 - (bw + reach) / bb), float(1 - (bw - reach) / bb))
