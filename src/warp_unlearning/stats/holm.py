"""Several tests at once: Holm's step-down correction."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InputError
from .roc import Floats


def holm(p_values: ArrayLike) -> Floats:
    """p-values corrected so that rejecting those below α errs at all in at most α of cases, however the tests depend.

    The i-th smallest of m is multiplied by m − i + 1; none is smaller than one before it, none exceeds 1.

    >>> holm([0.01, 0.04, 0.03])
    array([0.03, 0.06, 0.06])
    """
    given = np.asarray(p_values, dtype=np.float64).ravel()
    if given.size == 0 or not np.all((given >= 0) & (given <= 1)):
        raise InputError(f"the p-values are {given.tolist()}; give at least one, each between 0 and 1")
    order = np.argsort(given, kind="stable")
    raised = np.maximum.accumulate(given[order] * np.arange(given.size, 0, -1))
    found = np.empty_like(given)
    found[order] = np.minimum(raised, 1.0)
    return found
