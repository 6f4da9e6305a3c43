"""Files written whole or not at all, arrays read without unpickling, their digests, and results as plain data."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from errno import EINVAL
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, InputError


def as_path(given: object, what: str) -> Path:
    """`given` as a path that a system can have; `what` names it in the error where it is none."""
    if not isinstance(given, str | os.PathLike):
        raise InputError(f"{what} is a {type(given).__name__}; give a path")
    path = Path(os.fsdecode(given))
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{what} {str(path)!r} cannot be looked at ({why}); give another path") from error
    return path


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """The text of a regular file. A pipe or a device, which may never end, is an `OSError`."""
    if path.exists() and not path.is_file():
        raise OSError(EINVAL, "it is no regular file", str(path))
    return path.read_text(encoding=encoding)


def write_atomically(path: Path, data: bytes) -> None:
    """Put `data` at `path` in one step, for its owner alone; an earlier file stays whole until then."""
    _check_replaceable(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename inside `folder` survive a power cut, on systems that can."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def safe_output(path: Path, *, overwrite: bool = False) -> Path:
    """`path`, if a file may be written there; missing folders are made for their owner alone.

    Only a regular file is ever replaced, and only with `overwrite`.
    """
    for folder in reversed([path.parent, *path.parent.parents]):
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise InputError(f"the folder {folder} cannot be made ({error}); give another") from error
    if _check_replaceable(path) and not overwrite:
        raise InputError(f"there is a file {path} already; give another name, or say that it may be replaced")
    return path


def _check_replaceable(path: Path) -> bool:
    """Whether there is a file at `path`; an error if it is anything but a regular file."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(mode):
        kind = "a link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "no regular file"
        raise InputError(f"{path} is {kind}, which is not replaced; give another name")
    return True


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Every array of an `.npz` file. Arrays of Python objects, which need unpickling, are refused."""
    if not path.is_file():
        raise DataError(f"there is no file {path}; give a .npz written by numpy.savez")
    try:
        with path.open("rb") as file, np.lib.npyio.NpzFile(file) as loaded:
            # A member that is no .npy comes back as bytes, and has no `view`.
            return {key: loaded[key].view(np.ndarray) for key in loaded.files}
    except Exception as error:  # Damaged bytes make the reader raise nearly anything.
        why = f"is not a whole .npz of plain arrays ({error})"
        raise DataError(f"{path} {why}; write it again with numpy.savez") from error


def open_npy(path: Path) -> NDArray[Any]:
    """The array of a `.npy` file, mapped and not read. One of Python objects, which needs unpickling, is refused."""
    if not path.is_file():
        raise DataError(f"there is no file {path}; write it with numpy.save")
    try:
        found: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:
        raise DataError(f"{path} is no whole .npy of a plain array ({error}); write it with numpy.save") from error
    if found.ndim == 0:
        raise DataError(f"{path} holds a single value; write an array with one row an example")
    return found


def array_digest(*arrays: NDArray[Any]) -> str:
    """SHA-256 over the type, the shape and the bytes of each array, in order; the same on every machine.

    >>> array_digest(np.array([1, 2])) == array_digest(np.array([1]), np.array([2]))
    False
    """
    total = sha256()
    for array in arrays:
        if array.dtype.kind not in "biufcSU":
            raise DataError(f"an array of type {array.dtype} has no digest; convert it to numbers first")
        # Little-endian, so that a big-endian machine or file gives the same digest.
        fixed = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        total.update(f"{fixed.dtype.str}{array.shape};".encode())
        total.update(fixed.reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def to_json(data: Any) -> Any:
    """Mappings as dicts with text for keys, sequences as lists, numpy's numbers as Python's, non-finite ones as None.

    >>> to_json({"a": (1, float("inf")), 2: np.float64(0.5)})
    {'a': [1, None], '2': 0.5}
    """
    if isinstance(data, Mapping):
        return {str(key): to_json(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [to_json(value) for value in data]
    if isinstance(data, np.generic):
        return to_json(data.item())
    return None if isinstance(data, float) and not isfinite(data) else data
