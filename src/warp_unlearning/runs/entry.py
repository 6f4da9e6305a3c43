"""One result as one file: a line with the SHA-256 of the next, a header as JSON, then the files of the result."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from errno import EACCES, EDQUOT, EFBIG, EIO, EISDIR, ELOOP, ENOSPC, ENOTDIR, EPERM, EROFS
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import InputError, WarpError
from ..version import __version__
from .keys import Key

SCHEMA_VERSION = 2
NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_FULL = "the disk is full: free some of it (`warp runs gc`) and start again; what is finished is kept"
_REFUSED = "this account may not write there: give another folder, or change its owner"
_WAYS_OUT = {
    ENOSPC: _FULL,
    EDQUOT: _FULL.replace("disk is full", "disk quota is used up"),
    EFBIG: "no file may be so large (see `ulimit -f`): raise the limit and start again; what is finished is kept",
    EROFS: "the disk is read-only: give a store on another",
    EACCES: _REFUSED,
    EPERM: _REFUSED,
}


class StoreError(WarpError):
    """A store that cannot be used: not ours, of another version, full, read-only."""


class Missing(StoreError):
    """There is no result for a key. `digest` is the key's."""

    def __init__(self, message: str, *, digest: str) -> None:
        super().__init__(message)
        self.digest = digest

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword-only arguments would be lost on the way back from another process.
        return partial(type(self), digest=self.digest), self.args


class Damaged(Missing):
    """A result was not what its checksums say. It has been set aside, so its job can be done again."""


class Fault(Exception):
    """What is wrong with an entry, in words. The store turns it into `Damaged`."""


@dataclass(frozen=True)
class StoredFile:
    """One file of an entry: where it begins, its size and its SHA-256."""

    start: int
    size: int
    sha256: str


@dataclass(frozen=True)
class Entry:
    """One result; `made` is when, `seconds` how long its job took, `package` the version of ours that made it."""

    path: Path
    key: Key
    made: datetime
    seconds: float | None
    package: str
    files: Mapping[str, StoredFile]
    _judging: Callable[[str], AbstractContextManager[None]] = field(repr=False, compare=False)

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files.values())

    def read(self, name: str) -> bytes:
        """One file, verified. Raises `Damaged` after setting the entry aside, or `Missing`."""
        if name not in self.files:
            raise InputError(f"the entry {self.key} has no file {name!r}; it has {', '.join(sorted(self.files))}")
        with self._judging(self.key.digest):
            return content(self.path, name, self.files[name])

    def read_all(self) -> dict[str, bytes]:
        """Every file, verified."""
        return {name: self.read(name) for name in self.files}


def read_entry(path: Path, judging: Callable[[str], AbstractContextManager[None]]) -> Entry:
    """The entry at `path`, a digest; raises `Fault`, or `Missing`. `judging` is the context of its later reads."""
    with _reading(path) as file:
        check, header = file.readline(), file.readline()
        start, end = file.tell(), os.fstat(file.fileno()).st_size
    if sha256(header).hexdigest().encode() + b"\n" != check:
        raise Fault("its header is not what its checksum says")
    try:
        about = json.loads(header)
        if about["schema"] != SCHEMA_VERSION:
            raise Fault(f"its header has schema {about['schema']!r} and {SCHEMA_VERSION} is read here")
        key = Key(about["kind"], about["version"], about["ingredients"])
        files = {}
        for name, size, digest_of in about["files"]:
            files[str(name)] = StoredFile(start, size, digest_of)
            start += size
        made, seconds, package = datetime.fromisoformat(about["made"]), about["seconds"], str(about["package"])
    except (AttributeError, KeyError, TypeError, ValueError, InputError) as error:
        raise Fault(f"its header lacks what it should hold ({type(error).__name__}: {error})") from error
    if key.digest != path.name:
        raise Fault(f"it is that of another key, {key}")
    if start != end:
        raise Fault(f"it has {end} bytes and should have {start}")
    return Entry(path, key, made, seconds, package, files, judging)


def explain(error: OSError, doing: str) -> StoreError:
    """One sentence for an error of the operating system while `doing` something with a path."""
    way_out = _WAYS_OUT.get(error.errno or 0, "check the disk, or give another folder")
    return StoreError(f"cannot {doing}: {error.strerror or error}; {way_out}")


@contextmanager
def _reading(path: Path) -> Iterator[BinaryIO]:
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | NO_LINK), "rb") as file:
            yield file
    except FileNotFoundError as error:
        root, digest = path.parents[2], path.name
        raise Missing(f"{root} has no entry {digest[:12]}; run its job", digest=digest) from error
    except OSError as error:
        # Anything else says something of this process or its account, not of the entry.
        if error.errno not in (ENOTDIR, EISDIR, ELOOP, EIO):
            raise explain(error, f"read {path}") from error
        raise Fault(f"it cannot be read: {error.strerror or error}") from error


def content(path: Path, name: str, about: StoredFile) -> bytes:
    """One file of the entry at `path`, verified."""
    with _reading(path) as file:
        file.seek(about.start)
        data = file.read(about.size)
    if sha256(data).hexdigest() != about.sha256:
        raise Fault(f"{name} is not what its checksum says")
    return data


def header_bytes(key: Key, files: Mapping[str, bytes], seconds: float | None) -> bytes:
    """What an entry begins with."""
    about = {
        "schema": SCHEMA_VERSION,
        "kind": key.kind,
        "version": key.version,
        "ingredients": key.ingredients,
        "files": [[name, len(files[name]), sha256(files[name]).hexdigest()] for name in sorted(files)],
        "made": datetime.now(UTC).isoformat(),
        "seconds": seconds,
        "package": __version__,
    }
    line = json.dumps(about).encode() + b"\n"
    return sha256(line).hexdigest().encode() + b"\n" + line


def check_files(files: Mapping[str, bytes]) -> None:
    """Names that a pack can hold and a system can tell apart, and contents that are bytes."""
    if not isinstance(files, Mapping):
        raise InputError(f"the files of an entry are a {type(files).__name__}; give a mapping from names to bytes")
    for name, data in files.items():
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise InputError(f"a file of an entry is called {name!r}; use letters, digits, _, - and ., up to 100")
        if not isinstance(data, bytes | bytearray):
            raise InputError(f"the file {name} of an entry is a {type(data).__name__}; give bytes")
    if len({name.casefold() for name in files}) < len(files):
        raise InputError(f"files of an entry differ only in capitals: {', '.join(sorted(files))}; rename one")
