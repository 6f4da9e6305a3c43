"""Rows of a user's data: known by their place in what was given, recognised again by their content.

A row number is the row of the training array the user gave, a file name is relative to the folder given, an id is a
value of the column or array named. Test rows lie behind the training rows and cannot be asked for. Content is a digest
of the raw input alone: under another label it is the same picture.
"""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, InputError
from .files import as_path, open_npy, read_arrays, read_text, write_atomically

Index = NDArray[np.int64]
Digests = NDArray[np.str_]
Layout = Literal["nchw", "nhwc", "nhw", "nd"]

# Parts of a table: known and to be forgotten; known and kept; held out; unseen; forgotten before, or a left-out copy.
FORGET, RETAIN, VALIDATION, TEST, FORGOTTEN = range(5)

_CHUNK = 2**24


class Rows(Protocol):
    """Raw inputs: an array, a file read by row, or image files decoded on demand."""

    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    def __getitem__(self, index: Index, /) -> NDArray[Any]: ...


@dataclass(frozen=True, eq=False)
class Table:
    """Rows in the order of the user's file; never split, moved or normalised.

    Rows from `train` on are the test part. `held` are training rows that the user wanted held out as unseen.
    """

    x: Rows
    y: NDArray[np.int64]
    train: int
    classes: tuple[str, ...]
    names: NDArray[np.str_] | None = None
    layout: Layout = "nd"
    name: str = "npz"
    held: Index | None = None

    def __post_init__(self) -> None:
        most = self.y.max()
        if most >= len(self.classes):
            raise DataError(f"{self.name} has labels up to {most} and {len(self.classes)} classes; say all classes")

    def __len__(self) -> int:
        return len(self.y)

    @property
    def unseen(self) -> Index:
        """Rows the user held out or gave for testing."""
        behind = np.arange(self.train, len(self))
        return behind if self.held is None else np.concatenate([self.held, behind])

    @property
    def learned(self) -> Index:
        """Training rows that are not held out."""
        return np.setdiff1d(np.arange(self.train), self.unseen)

    @cached_property
    def digests(self) -> Digests:
        """128-bit BLAKE2b of each raw input, or image file, in hexadecimal. Rows are read a chunk at a time, once."""
        if hasattr(self.x, "digests"):
            return np.array(self.x.digests(), dtype="U32")
        kind = self.x.dtype.newbyteorder("<")
        start = f"{kind.str}{tuple(self.x.shape[1:])}".encode()
        found = [content_digest(start, row.tobytes()) for part in chunks(self.x) for row in self.x[part].astype(kind)]
        return np.array(found, dtype="U32")

    def describe(self, row: int) -> str:
        """How a row is read back to the user: number, name and class."""
        name = "" if self.names is None or not self.names[row] else f' "{self.names[row]}"'
        return f"{row}{name} class {self.classes[self.y[row]]}"


def chunks(rows: Rows, index: Index | None = None) -> Iterator[Index]:
    """`index`, or the numbers of all rows, in pieces whose inputs take 16 MiB or less."""
    index = np.arange(rows.shape[0]) if index is None else index
    step = max(_CHUNK // max(rows.dtype.itemsize * int(np.prod(rows.shape[1:])), 1), 1)
    for start in range(0, len(index), step):
        yield index[start : start + step]


def content_digest(*parts: bytes) -> str:
    """128 bits of BLAKE2b of `parts`, in hexadecimal."""
    return blake2b(b"".join(parts), digest_size=16).hexdigest()


def check_labels(y: NDArray[Any], what: str) -> NDArray[np.int64]:
    """`y` as int64 if it has one class number a row; otherwise an error that says what it has instead."""
    if y.ndim > 1 and y.shape[1] > 1:
        found = f"shape {y.shape}, several classes at once; give one class a row (for one-hot labels, y.argmax(1))"
    elif y.ndim != 1 or len(y) == 0:
        found = f"shape {y.shape}; give one whole-number class a row, shape (n,)"
    elif y.dtype.kind in "OSU":
        found = f"names such as {y.tolist()[0]!r}; number the classes from 0, by numpy.unique(y, return_inverse=True)"
    elif y.dtype.kind not in "iu":
        found = f"type {y.dtype}; give whole-number classes, from 0: real numbers are not classes"
    elif len(negative := np.flatnonzero(y.astype(np.int64) < 0)):
        found = f"{y[negative[0]]} in row {negative[0]}; number the classes from 0, and leave out rows without one"
    else:
        return y.astype(np.int64)
    raise DataError(f"the labels of {what} have {found}")


def find(asked: object, table: Table, by: Literal["row", "id"] | None = None) -> Index:
    """Training rows asked for by mask, number, or name (an id or file name), sorted, each once.

    Where numbers may be rows as well as ids, `by` must say which. A name may belong to several rows.
    """
    values = np.asarray(asked)
    if values.dtype.names:
        column = values.dtype.names[0]
        if column.isdecimal() or (table.names is not None and column in table.names):
            raise DataError(f"the csv begins with {column!r}, which is a row and no heading; put a heading above it")
        by = by or {"row": "row", "id": "id"}.get(column)  # type: ignore[assignment]
        values = values[column]
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "replace")
    texts = values.dtype.kind == "O" and all(isinstance(value, str) for value in values.flat)
    if values.size == 0:
        raise DataError("the request is empty; give at least one row")
    if values.ndim != 1 or not (texts or values.dtype.kind in "biuU"):
        kind = f"shape {values.shape}, type {values.dtype}"
        raise DataError(f"the request has {kind}; give whole numbers, ids or a bool mask, shape (n,)")
    if values.dtype.kind in "iu" and len(values) == table.train > 2 and np.isin(values, (0, 1)).all():
        raise DataError(f"the request has {len(values)} numbers, all 0 or 1; if it is a mask, make it bool")
    if values.dtype != bool:
        return _named(values.astype(str), table, by)
    if len(values) != table.train or by == "id":
        raise DataError(f"the mask has {len(values)} values; it needs one for each of {table.train} training rows")
    if not values.any():
        raise DataError("the request names no rows; give at least one")
    return np.flatnonzero(values)


def _named(texts: NDArray[np.str_], table: Table, by: str | None) -> Index:
    whole = all(re.fullmatch(r"-?[0-9]+", text) for text in texts)
    names = np.empty(0, "U1") if table.names is None else table.names[: table.train]
    numbered = len(names) > 0 and all(name.isascii() and name.isdecimal() for name in names.tolist())
    if by is None and whole and (numbered or np.isin(texts, names).any()):
        raise InputError(f"{texts[0]} may be a row or an id, as both are numbers; say which (--by row or --by id)")
    if by == "row" or (by is None and whole):
        lost = [text for text in texts.tolist() if not re.fullmatch("[0-9]{1,18}", text) or int(text) >= table.train]
        if not lost:
            return np.unique(texts.astype(np.int64))
        why = f"are no row numbers, first {lost[0]}; training rows are numbered 0 to {table.train - 1}"
        raise DataError(f"{len(lost)} of {len(texts)} {why}, as in the data given")
    if table.names is None:
        raise DataError(f"the data have no ids, so {str(texts[0])!r} names no row; give row numbers, or --ids")
    lost = texts[~np.isin(texts, names)].tolist()
    if lost:
        tested = " (it names a test row, which was not learned)" if lost[0] in table.names else ""
        why = f"belong to no training row, first {lost[0]!r}{tested}; names are such as {str(names[0])!r}"
        raise DataError(f"{len(lost)} of {len(texts)} names {why}, and others are used with --ids")
    return np.flatnonzero(np.isin(names, texts))


def close(forget: Index, digests: Digests) -> Index:
    """These rows with every exact copy of them, in whichever part and under whichever label."""
    return np.flatnonzero(np.isin(digests, digests[forget]))


def read_request(path: Path, column: str | None = None) -> NDArray[Any]:
    """The rows that a .npy, .txt (one a line) or .csv file asks for, for `find`.

    A csv comes back as a structured array whose field is the column, by which `find` knows `row` from `id`.
    """
    path = as_path(path, "the request")
    kind = path.suffix.lower()
    if not path.is_file() or kind not in (".npy", ".txt", ".csv", ".tsv"):
        found = f"{path} is no request that can be read" if path.is_file() else f"there is no file {path}"
        raise DataError(f"{found}; give row numbers, ids or a mask as .npy, .txt or .csv")
    if kind in (".csv", ".tsv"):
        return _read_column(path, column)
    if column is not None:
        raise InputError(f"{path} has no columns, so there is no column {column!r}; give a .csv, or leave it out")
    if kind == ".txt":
        return np.array([line.strip() for line in _text(path).splitlines() if line.strip()], dtype=str)
    return np.array(open_npy(path))


def _read_column(path: Path, column: str | None) -> NDArray[Any]:
    cells = read_csv(path)
    if column is None and len(cells) > 1:
        raise InputError(f"{path} has the columns {', '.join(cells)}; say which names the rows (--column)")
    column = next(iter(cells)) if column is None else column
    if column not in cells:
        raise InputError(f"{path} has no column {column!r} but {', '.join(cells)}")
    values = cells[column]
    empty = np.flatnonzero(values == "")
    if len(empty):
        raise DataError(f"{path} has nothing in column {column!r} of data row {empty[0] + 1}; fill it or drop the row")
    return values.view([(column, values.dtype)])


def read_csv(path: Path) -> dict[str, NDArray[np.str_]]:
    """The columns of a file with commas, semicolons or tabs, by heading; blank lines are left out."""
    text = _text(path)
    delimiter = next((d for d in ",;\t" if d in text.partition("\n")[0]), ",")
    try:
        lines = [[cell.strip() for cell in line] for line in csv.reader(io.StringIO(text), delimiter=delimiter)]
    except csv.Error as error:
        raise DataError(f"{path} is not a csv ({error}); write it again") from error
    lines = [line for line in lines if any(line)]
    if not lines or not all(lines[0]) or len(set(lines[0])) != len(lines[0]):
        raise DataError(f"{path} has no line of headings, each its own; write one above the rows")
    for number, line in enumerate(lines):
        if len(line) != len(lines[0]):
            raise DataError(f"{path} has {len(line)} cells in data row {number} and {len(lines[0])} headings")
    return {name: np.array([line[k] for line in lines[1:]], dtype=str) for k, name in enumerate(lines[0])}


def _text(path: Path) -> str:
    try:
        return read_text(path, "utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as text ({error}); write it as UTF-8") from error


@dataclass(frozen=True, eq=False)
class Parts:
    """Which part each row of a table is in, kept by content and without names, in one file `rows.npz`."""

    digests: Digests
    labels: NDArray[np.int64]
    part: NDArray[np.uint8]
    train: int

    @classmethod
    def start(cls, table: Table, *, validation: Index | None = None) -> Parts:
        """Parts before any request: unseen rows to test on, `validation` held out, and all others known."""
        part = np.full(len(table), RETAIN, dtype=np.uint8)
        part[np.empty(0, dtype=np.int64) if validation is None else validation] = VALIDATION
        part[table.unseen] = TEST
        return cls(table.digests, table.y, part, table.train).check()

    def rows(self, code: int) -> Index:
        """The rows of a part."""
        return np.flatnonzero(self.part == code)

    @property
    def unseen(self) -> Index:
        """Test rows of which no other part has a copy."""
        test = self.part == TEST
        return np.flatnonzero(test & ~np.isin(self.digests, self.digests[~test]))

    @property
    def _gone(self) -> NDArray[np.bool_]:
        return np.isin(self.part, (FORGET, FORGOTTEN))

    def request(self, table: Table, rows: Index, again: bool = False) -> Parts:
        """The parts once `rows` and all their copies are to be forgotten; earlier forgotten rows are FORGOTTEN.

        Rows that the model learned become FORGET. Copies among unseen and validation rows, which it did not learn, are
        left out of every set (FORGOTTEN). With `again`, rows forgotten before may be asked for once more.
        """
        if not np.array_equal(self.digests, table.digests):
            raise InputError("these parts are of other data than the table; align them with it first")
        gone = self._gone
        if gone[rows].any() and not again:
            before = f"{int(gone[rows].sum())} of {len(rows)} rows have been forgotten already"
            first = rows[gone[rows]][0]
            raise InputError(f"{before}, first row {first}; leave them out, or ask for them again (--again)")
        every = close(rows, self.digests)
        known = every[(self.part[every] == RETAIN) | (gone[every] & (every < self.train))]
        if len(known) == 0:
            held = f"the model learned none of the {len(rows)} rows asked for (first {rows[0]}), as they were held out"
            raise InputError(f"{held}; there is nothing to forget")
        part = np.where(gone, FORGOTTEN, self.part).astype(np.uint8)
        part[every], part[known] = FORGOTTEN, FORGET
        if not (part == RETAIN).any():
            raise InputError(f"forgetting {len(known)} rows leaves none to retain; forget fewer")
        return Parts(self.digests, self.labels, part, self.train).check()

    def check(self) -> Parts:
        """These parts, if no content is both forgotten and kept or measured on, and test rows are nothing else."""
        gone = self._gone
        both = np.flatnonzero(gone & np.isin(self.digests, self.digests[~gone]))
        if len(both):
            raise DataError(f"{len(both)} forgotten rows have copies that are kept, first row {both[0]}; ask again")
        wrong = np.flatnonzero(~np.isin(self.part[self.train :], (TEST, FORGOTTEN)))
        if len(wrong) or (self.part > FORGOTTEN).any():
            raise DataError(f"these parts fit no table: {len(self.part)} rows, {len(wrong)} test rows are learned from")
        return self

    def save(self, path: Path) -> None:
        """Write `rows.npz`, for its owner alone."""
        digest = np.frombuffer(bytes.fromhex("".join(self.digests.tolist())), np.uint8).reshape(-1, 16)
        buffer = io.BytesIO()
        np.savez(buffer, digest=digest, label=self.labels, part=self.part, train=np.array(self.train))
        write_atomically(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> Parts:
        """Read and check a `rows.npz`."""
        arrays = read_arrays(path)
        found = {key: (value.dtype.str[1:], *value.shape) for key, value in arrays.items()}
        count = arrays["label"].size if "label" in arrays else 0
        needed = {"digest": ("u1", count, 16), "label": ("i8", count), "part": ("u1", count), "train": ("i8",)}
        if found != needed or not 0 < int(arrays["train"]) <= count:
            raise DataError(f"{path} does not hold the digest, label and part of each row; make the run again")
        digests = np.array([row.tobytes().hex() for row in arrays["digest"]], dtype="U32")
        return cls(digests, arrays["label"], arrays["part"], int(arrays["train"])).check()

    def on(self, table: Table) -> Parts:
        """These parts on the rows of another table of the same data, matched by content; rows that are not among them
        are in no part (FORGOTTEN).
        """
        row, lost = self._matched(table, [0] * len(self.part), [0] * len(table))
        if lost:
            some = f"{len(lost)} rows of one model are not among those of the other"
            raise DataError(f"{some}; compare models of one data set")
        part = np.where(row < 0, FORGOTTEN, self.part[row]).astype(np.uint8)
        return Parts(table.digests, table.y, part, table.train)

    def align(self, table: Table) -> Parts:
        """The part of each row of today's file, matched by content in any order.

        Copies are counted, labels compared, and test rows match only test rows. Forgotten rows may be gone; a row that
        is known or tested must be there, and none may be new.
        """
        row, lost = self._matched(table, self.labels.tolist(), table.y.tolist())
        new, way = np.flatnonzero(row < 0), "or begin with the original model"
        if lost:
            why = f"are gone or changed, in content or label, first row {lost[0]} of the data as they were"
            raise DataError(f"{len(lost)} rows that the model knows or was tested on {why}; put them back, {way}")
        if len(new):
            raise DataError(f"{len(new)} rows are new to the model, first row {new[0]}; leave them out, {way}")
        return Parts(table.digests, table.y, self.part[row], table.train).check()

    def _matched(self, table: Table, labels: list[int], others: list[int]) -> tuple[Index, list[int]]:
        """For each row of `table` a row of these parts with the same content and label (-1: none), and the rows not
        forgotten that have none. Of equal rows those to be forgotten come first, since in a file they stay the longest.
        """
        ours, waiting = list(zip(self.digests.tolist(), labels, strict=True)), defaultdict(list)
        for row in np.argsort(self.part, kind="stable")[::-1].tolist():
            waiting[row >= self.train, ours[row]].append(row)
        theirs = enumerate(zip(table.digests.tolist(), others, strict=True))
        same = (waiting[row >= table.train, key] for row, key in theirs)
        found = np.array([rows.pop() if rows else -1 for rows in same], dtype=np.int64)
        gone = self._gone
        return found, sorted(row for rows in waiting.values() for row in rows if not gone[row])
