"""A split on disk: forget.npy, retain.npy, validation.npy, test.npy and split.json, for their owner alone.

split.json is written last and holds the digest of the four: a folder cut off or changed does not load.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from .files import array_digest, write_atomically
from .splits import ForgetRule, Indices, RandomFraction, Split, check_disjoint, check_indices

SCHEMA_VERSION = 1

_PARTS = ("forget", "retain", "validation", "test")


def save_split(split: Split, folder: Path, *, rule: ForgetRule) -> None:
    """Write `split`, and the `rule` that made it, to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in _PARTS:
        buffer = io.BytesIO()
        np.save(buffer, getattr(split, name), allow_pickle=False)
        write_atomically(folder / f"{name}.npy", buffer.getvalue())
    about = {
        "schema_version": SCHEMA_VERSION,
        "digest": split.digest,
        "counts": {name: len(getattr(split, name)) for name in _PARTS},
        "rule": _described(rule),
    }
    write_atomically(folder / "split.json", (json.dumps(about, indent=2) + "\n").encode())


def load_split(folder: Path, *, train_count: int | None = None, test_count: int | None = None) -> Split:
    """Read a split and verify it: its digest, disjoint parts, and that they fit the counts if given."""
    digest = _read_digest(folder / "split.json")
    forget, retain, validation, test = (_read_part(folder / f"{name}.npy") for name in _PARTS)
    split = Split(forget=forget, retain=retain, validation=validation, test=test)
    if split.digest != digest:
        raise DataError(f"{folder} has digest {split.digest}, its split.json says {digest}; make the split again")
    for name in _PARTS:
        count = test_count if name == "test" else train_count
        part = getattr(split, name)
        # Validation may be empty, because a split may be made without it.
        if (name != "validation" or len(part)) and not np.array_equal(
            part, check_indices(part, count=count, what=name)
        ):
            raise DataError(f"{folder / name}.npy is not sorted; make the split again")
    check_disjoint({"forget": forget, "retain": retain, "validation": validation})
    return split


def _described(rule: ForgetRule) -> dict[str, Any]:
    if isinstance(rule, RandomFraction):
        return {"kind": "random_fraction", "fraction": rule.fraction, "per_class": rule.per_class}
    if isinstance(rule, Indices):
        return {"kind": "indices", "digest": array_digest(rule.array)}
    return {"kind": "whole_class", "label": int(rule.label)}


def _read_digest(path: Path) -> str:
    if not path.is_file():
        raise DataError(f"there is no {path}, so the split is not there or not whole; make it again")
    try:
        about = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path} is not JSON ({error}); make the split again") from error
    version = about.get("schema_version") if isinstance(about, dict) else None
    if version != SCHEMA_VERSION:
        raise DataError(f"{path} has schema_version {version!r}, {SCHEMA_VERSION} is known; make the split again")
    return str(about.get("digest"))


def _read_part(path: Path) -> NDArray[np.int64]:
    try:
        array = np.load(io.BytesIO(path.read_bytes()), allow_pickle=False)
    except (OSError, ValueError, EOFError, TokenError) as error:
        raise DataError(f"{path} is not a whole array ({error}); make the split again") from error
    if not isinstance(array, np.ndarray) or array.dtype != np.int64 or array.ndim != 1:
        raise DataError(f"{path} is not a list of 64-bit whole numbers; make the split again")
    return array
