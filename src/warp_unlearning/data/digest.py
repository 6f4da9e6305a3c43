"""SHA-256 of arrays: over the type, the shape and the bytes of each, in order."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError


def array_digest(*arrays: NDArray[Any]) -> str:
    """The same hexadecimal digest on every machine for arrays of equal type, shape and values.

    >>> array_digest(np.array([1, 2])) == array_digest(np.array([1]), np.array([2]))
    False
    """
    total = sha256()
    for array in arrays:
        if array.dtype.kind not in "biufcSU":
            raise DataError(f"an array of type {array.dtype} has no digest; convert it to numbers first")
        # Bytes in little-endian order, so that a big-endian machine or file gives the same digest.
        fixed = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        total.update(f"{fixed.dtype.str}{array.shape};".encode())
        total.update(fixed.reshape(-1).view(np.uint8).data)
    return total.hexdigest()
