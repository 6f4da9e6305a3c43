"""Files that may be compressed: told by their name when they are written, and by their first bytes when read."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from io import BufferedIOBase, BufferedReader, BufferedWriter
from pathlib import Path

# BadGzipFile is an OSError: whoever catches both looks for damage first.
DAMAGE: tuple[type[Exception], ...] = (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile)

# Scores are numbers of two bytes: literals are told apart by whether they are the first or the second of a number.
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 8, "lp": 1, "pb": 1}]
_XZ, _GZ = b"\xfd7zXZ\x00", b"\x1f\x8b"
_AT_ONCE = 2**20


@contextmanager
def writing(file: Path) -> Iterator[BufferedIOBase]:
    """What is written goes to `file`, by xz or gzip where its name ends in .xz or .gz; a failure leaves no file.

    Neither the name nor the time goes in, so the same content gives the same bytes.
    """
    raw = file.open("wb")
    try:
        with raw, _packing(raw, file.suffix) as packed:
            yield packed
    except BaseException:
        # Closed in good order, half of the content would pass for all of it.
        file.unlink(missing_ok=True)
        raise


@contextmanager
def reading(file: Path) -> Iterator[BufferedIOBase]:
    """The content of `file`; reading it raises one of `DAMAGE` where that is found."""
    with file.open("rb") as raw, _unpacking(raw) as content:
        yield content


def require_whole(file: Path) -> None:
    """Read a compressed file to its end, where its checksum is; raises one of `DAMAGE`. Others have no checksum."""
    with file.open("rb") as raw, _unpacking(raw) as content:
        while content is not raw and content.read(_AT_ONCE):
            pass


def _packing(raw: BufferedWriter, suffix: str) -> AbstractContextManager[BufferedIOBase]:
    if suffix == ".xz":
        return lzma.open(raw, "wb", filters=_FILTERS)
    if suffix == ".gz":
        return gzip.GzipFile("", "wb", fileobj=raw, mtime=0)
    return nullcontext(raw)


def _unpacking(raw: BufferedReader) -> AbstractContextManager[BufferedIOBase]:
    start = raw.read(len(_XZ))
    raw.seek(0)
    if start == _XZ:
        return lzma.open(raw)
    return gzip.open(raw) if start.startswith(_GZ) else nullcontext(raw)
