"""Fashion-MNIST: 60,000 training and 10,000 test grey images of 28 by 28, from its four idx files."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from .dataset import ImageData, RawPart, image_data

CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
MEAN = (0.2860,)
STD = (0.3530,)
COUNTS = {"train": 60_000, "t10k": 10_000}

_SIDE = 28


def load_fashion_mnist(folder: Path, *, _counts: Mapping[str, int] = COUNTS) -> ImageData:
    """Read the idx files of `folder`, plain or with `.gz`."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; give the folder of the four Fashion-MNIST idx files")
    return image_data(
        "fashion_mnist",
        train=_part(folder, "train", _counts["train"]),
        test=_part(folder, "t10k", _counts["t10k"]),
        classes=CLASSES,
        layout="nhw",
        mean=MEAN,
        std=STD,
    )


def read_idx(path: Path, *, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The bytes of an idx file, which must be of exactly this shape. `.gz` is unpacked on the way."""
    expected = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape)
    size = int(np.prod(shape))
    try:
        with _open(path) as file:
            header = file.read(len(expected))
            # One byte more than there should be tells a file that goes on, without reading how far.
            data = file.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read to its end ({error}); get it again") from error
    if header != expected:
        raise DataError(f"{path} begins with {header.hex()}, not {expected.hex()} (bytes of {shape}); get it again")
    if len(data) != size:
        found = "more" if len(data) > size else f"only {len(data)}"
        raise DataError(f"{path} should hold {size} bytes after its header and holds {found}; get it again")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)


def _open(path: Path) -> IO[bytes]:
    return cast("IO[Any]", gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _part(folder: Path, prefix: str, count: int) -> RawPart:
    x = read_idx(_find(folder, f"{prefix}-images-idx3-ubyte"), shape=(count, _SIDE, _SIDE))
    return x, read_idx(_find(folder, f"{prefix}-labels-idx1-ubyte"), shape=(count,))


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise DataError(f"{folder} has neither {name} nor {name}.gz; put the four official files there")
