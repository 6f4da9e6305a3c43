"""Pixels and labels out of a pickled CIFAR-10 batch without unpickling it.

The file is read as a list of opcodes, none of which is carried out: the labels are the whole numbers after
the string "labels", and the pixels are the longest string of bytes.
"""

from __future__ import annotations

import pickletools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError

PIXELS = 3072

_STRINGS = {"BINSTRING", "SHORT_BINSTRING", "BINUNICODE", "SHORT_BINUNICODE"}
_BYTES = {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
_WHOLE = {"BININT", "BININT1", "BININT2"}


def pickled_records(data: bytes, *, what: str) -> NDArray[np.uint8]:
    """Records of the official binary form (a label byte, then 3,072 pixels) of a pickled batch."""
    labels: list[int] = []
    pixels = b""
    key = b""
    try:
        for opcode, value, _ in pickletools.genops(data):
            if opcode.name in _WHOLE and key == b"labels":
                labels.append(int(value or 0))
            elif opcode.name in _STRINGS | _BYTES:
                key = _as_bytes(value)
                pixels = max(pixels, key, key=len)
    except (ValueError, EOFError) as error:
        raise DataError(f"{what} is not a whole pickle ({error}); get it again") from error
    if not labels or len(pixels) != PIXELS * len(labels) or not all(0 <= label < 256 for label in labels):
        raise DataError(f"{what} holds {len(labels)} labels and {len(pixels)} bytes of pixels; get it again")
    image_bytes = np.frombuffer(pixels, dtype=np.uint8).reshape(-1, PIXELS)
    return np.concatenate([np.array(labels, dtype=np.uint8)[:, None], image_bytes], axis=1)


def _as_bytes(value: Any) -> bytes:
    # A Python 2 string is read as latin-1, a character a byte; Python 3 texts, never pixels, may hold others.
    return value.encode("latin-1", "replace") if isinstance(value, str) else bytes(value)
