"""A user's own data in one `.npz` file: `x` and `y`, and perhaps `x_test` and `y_test`.

8-bit images may have their channels last, first, or not at all; floating-point images and flat features are
taken as they are. Without a test part, a fixed fifth of the examples, the classes in proportion, becomes one.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from .dataset import ImageData, Layout, RawPart, image_data
from .stratified import fixed_test_part

_CHANNELS = (1, 3, 4)
_UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    RuntimeError,
    NotImplementedError,
    TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


def load_npz(path: Path) -> ImageData:
    """Read `path`. Classes are named by number; `layout` in the file ("nchw" or "nhwc") settles a doubt."""
    arrays = read_arrays(path)
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise DataError(f"{path} has only one of x_test and y_test; save both or neither")
    train = _part(arrays, "x", "y", path)
    test = _part(arrays, "x_test", "y_test", path) if "x_test" in arrays else None
    layout = _layout(train[0], arrays.get("layout"), path)
    classes = _classes([train[1]] if test is None else [train[1], test[1]], path)
    if test is None:
        x, y = train
        kept, held = fixed_test_part(y, fraction=0.2, name="npz")
        train, test = (x[kept], y[kept]), (x[held], y[held])
    return image_data("npz", train=train, test=test, classes=classes, layout=layout)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Every array of an `.npz` file. Arrays of Python objects, which need unpickling, are refused."""
    if not path.is_file():
        raise DataError(f"there is no file {path}; give a .npz written by numpy.savez")
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if not isinstance(loaded, np.lib.npyio.NpzFile):
                raise DataError(f"{path} holds a single array; save x and y together with numpy.savez")
            return {key: loaded[key] for key in loaded.files}
    except _UNREADABLE as error:
        raise DataError(
            f"{path} is not a whole .npz of plain arrays ({error}); write it again with numpy.savez"
        ) from error


def _part(arrays: dict[str, NDArray[Any]], x_key: str, y_key: str, path: Path) -> RawPart:
    for key in (x_key, y_key):
        if key not in arrays or arrays[key].ndim == 0:
            raise DataError(
                f"{path} has no array {key!r} but {sorted(arrays)}; write it with numpy.savez(x=..., y=...)"
            )
    x, y = arrays[x_key], arrays[y_key]
    if len(x) != len(y):
        raise DataError(f"{path} has {len(x)} rows in {x_key} and {len(y)} in {y_key}; they must be as many")
    if y.ndim != 1 or y.dtype.kind not in "iu" or len(y) == 0:
        raise DataError(f"{path} has {y_key} of shape {y.shape}, type {y.dtype}; give one whole-number class a row")
    # Before a test part is set aside, so that the row named is the row in the file.
    if x.dtype.kind == "f":
        bad = np.flatnonzero(~np.isfinite(x).reshape(len(x), -1).all(axis=1))
        if len(bad):
            raise DataError(f"{path}: row {bad[0]} of {x_key} is not finite; mend or drop that row")
    return x, y


def _layout(x: NDArray[Any], given: NDArray[Any] | None, path: Path) -> Layout:
    if given is not None and x.ndim == 4:
        if str(given) == "nchw":
            return "nchw"
        if str(given) == "nhwc":
            return "nhwc"
        raise DataError(f"{path} has layout {str(given)!r}; it must be 'nchw' or 'nhwc'")
    if x.ndim == 4:
        return _guess(x.shape, path)
    if x.ndim == 3:
        return "nhw"
    if x.ndim == 2 and x.dtype.kind == "f":
        return "nd"
    raise DataError(
        f"{path} has x of shape {x.shape} and type {x.dtype}; give 8-bit images (n, h, w), (n, h, w, c) or "
        "(n, c, h, w), or floating-point features (n, d)"
    )


def _guess(shape: tuple[int, ...], path: Path) -> Layout:
    first, last = shape[1] in _CHANNELS, shape[3] in _CHANNELS
    if first == last:
        why = "both axis 1 and axis 3 could be" if first else "neither axis 1 nor axis 3 can be"
        raise DataError(
            f"{path} has x of shape {shape}: {why} the channels (1, 3 or 4 of them); "
            "add layout='nchw' or layout='nhwc' to the file"
        )
    return "nchw" if first else "nhwc"


def _check_finite(train: RawPart, test: RawPart, path: Path) -> None:
    # Before a test part is set aside, so that the row named is the row in the file.
    for key, (x, _) in (("x", train), ("x_test", test)):
        if x.dtype.kind == "f":
            bad = np.flatnonzero(~np.isfinite(x).reshape(len(x), -1).all(axis=1))
            if len(bad):
                raise DataError(f"{path}: row {bad[0]} of {key} is not finite; mend or drop that row")


def _classes(labels: list[NDArray[Any]], path: Path) -> list[str]:
    present = np.unique(np.concatenate(labels).astype(np.int64))
    if present[0] < 0:
        raise DataError(f"{path} has the label {present[0]}; number the classes 0, 1, 2, ... without gaps")
    if not np.array_equal(present, np.arange(len(present))):
        gap = int(np.flatnonzero(present != np.arange(len(present)))[0])
        raise DataError(
            f"{path} has labels from {present[0]} to {present[-1]} but none for class {gap}; "
            "number the classes 0, 1, 2, ... without gaps"
        )
    return [str(k) for k in range(len(present))]
