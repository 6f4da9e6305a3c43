"""Results as plain data that JSON has a form for."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np


def plain(data: Any) -> Any:
    """Mappings as dicts with text for keys, sequences as lists, numpy's numbers as Python's; a number that is not
    finite is None.

    >>> plain({"a": (1, float("inf")), 2: np.float64(0.5)})
    {'a': [1, None], '2': 0.5}
    """
    if isinstance(data, Mapping):
        return {str(key): plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [plain(value) for value in data]
    if isinstance(data, np.generic):
        return plain(data.item())
    return None if isinstance(data, float) and not isfinite(data) else data
