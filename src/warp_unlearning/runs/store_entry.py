"""One entry of a store: a folder with a manifest and the files it names, each with its size and SHA-256."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from errno import EIO, EISDIR, ELOOP, ENOENT, ENOTDIR
from hashlib import sha256
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..version import __version__
from .key import Key, canonical_json
from .store_errors import explain

MANIFEST = "manifest.json"
SCHEMA_VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class Damage(Exception):
    """What is wrong with an entry, in words. The store turns it into a `CorruptEntry`."""


@dataclass(frozen=True)
class StoredFile:
    """What the manifest says of one file."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What is said of an entry: its key, its files, when it was made and how long that took."""

    key: Key
    files: Mapping[str, StoredFile]
    made: datetime
    seconds: float | None
    package: str

    @property
    def size(self) -> int:
        """Size of all files together."""
        return sum(file.size for file in self.files.values())


def describe(key: Key, files: Mapping[str, bytes], *, seconds: float | None) -> Manifest:
    """The manifest of `files`, made at this moment."""
    about = {name: StoredFile(len(data), sha256(data).hexdigest()) for name, data in files.items()}
    return Manifest(key, about, datetime.now(UTC), seconds, __version__)


def manifest_bytes(manifest: Manifest) -> bytes:
    """The manifest as JSON, with a checksum of its own."""
    body = {
        "schema_version": SCHEMA_VERSION,
        "kind": manifest.key.kind,
        "version": manifest.key.version,
        "digest": manifest.key.digest,
        "ingredients": manifest.key.ingredients,
        "files": {name: {"bytes": f.size, "sha256": f.sha256} for name, f in sorted(manifest.files.items())},
        "made": manifest.made.isoformat(),
        "seconds": manifest.seconds,
        "package": manifest.package,
    }
    return (json.dumps(body | {"checksum": _checksum(body)}, indent=1, ensure_ascii=False) + "\n").encode()


def read_manifest(folder: Path, digest: str) -> Manifest:
    """The manifest in `folder`, which must be whole and that of the key with this digest."""
    try:
        body = json.loads(_read(folder / MANIFEST))
    except (ValueError, RecursionError) as error:
        raise Damage(f"{MANIFEST} is no JSON: {error}") from error
    try:
        if body.pop("checksum") != _checksum(body):
            raise Damage(f"{MANIFEST} is not what its checksum says")
        if body["schema_version"] != SCHEMA_VERSION:
            raise Damage(f"{MANIFEST} has schema version {body['schema_version']!r} and {SCHEMA_VERSION} is read here")
        manifest = _parsed(body)
    except (AttributeError, KeyError, TypeError, ValueError, InputError) as error:
        raise Damage(f"{MANIFEST} lacks what it should hold ({type(error).__name__}: {error})") from error
    if manifest.key.digest != digest or body["digest"] != digest:
        raise Damage(f"{MANIFEST} is that of another key, {manifest.key}")
    return manifest


def read_file(folder: Path, name: str, about: StoredFile) -> bytes:
    """One file of an entry, verified."""
    data = _read(folder / name)
    if len(data) != about.size:
        raise Damage(f"{name} has {len(data)} bytes and should have {about.size}")
    if sha256(data).hexdigest() != about.sha256:
        raise Damage(f"{name} is not what its checksum says")
    return data


def check_files(files: Mapping[str, bytes]) -> None:
    """Names that stay inside their folder on every system, and contents that are bytes."""
    if not isinstance(files, Mapping):
        raise InputError(f"the files of an entry are a {type(files).__name__}; give a mapping from names to bytes")
    for name, data in files.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name.casefold() == MANIFEST:
            raise InputError(
                f"a file of an entry is called {name!r}; use letters, digits, _, - and ., up to 100, and not {MANIFEST}"
            )
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InputError(f"the file {name} of an entry is a {type(data).__name__}; give bytes")
    if len({name.casefold() for name in files}) < len(files):
        raise InputError(f"files of an entry differ only in capitals: {', '.join(sorted(files))}; rename one")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        # Anything else says something of this process or its account, not of the entry.
        if error.errno not in (ENOENT, ENOTDIR, EISDIR, ELOOP, EIO):
            raise explain(error, f"read {path}") from error
        raise Damage(f"{path.name} cannot be read: {error.strerror or error}") from error


def _checksum(body: Mapping[str, Any]) -> str:
    return sha256(canonical_json(dict(body)).encode()).hexdigest()


def _parsed(body: Mapping[str, Any]) -> Manifest:
    files = {name: StoredFile(int(f["bytes"]), str(f["sha256"])) for name, f in body["files"].items()}
    if not all(_NAME.fullmatch(name) for name in files):
        raise Damage(f"{MANIFEST} names files outside of the entry")
    key = Key(body["kind"], body["version"], body["ingredients"])
    seconds = body["seconds"]
    made = datetime.fromisoformat(body["made"])
    return Manifest(key, files, made, None if seconds is None else float(seconds), str(body["package"]))
