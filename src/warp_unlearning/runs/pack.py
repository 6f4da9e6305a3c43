"""Results of one store in a file, and into another: how a study goes on on another machine.

A pack is a tar file, compressed by the end of its name. Of each result, named by the digest of its key, `.key.json`
comes first: the key, the seconds, the SHA-256 of each file, and that of all this; then the files. The last member,
`pack.json`, has the number of results and a digest over them. Whatever is changed or missing is refused.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import tarfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from hashlib import sha256
from io import BufferedIOBase, BufferedReader, BufferedWriter
from pathlib import Path
from typing import Any

from ..errors import DataError, InputError, nearest
from .keys import Key, canonical_json
from .store import ABOUT, Store

_KEY, _END = ".key.json", "pack.json"
# BadGzipFile is an OSError: whoever catches both looks for damage first.
_DAMAGE = (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile)
# Scores are numbers of two bytes: literals are told apart by whether they are the first or the second of a number.
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 8, "lp": 1, "pb": 1}]
_XZ, _GZ = b"\xfd7zXZ\x00", b"\x1f\x8b"
_Result = tuple[Key, float | None, Mapping[str, bytes]]


@dataclass(frozen=True)
class Packed:
    """How many results went into a file, or were taken from it; `known` were there already, or in work there."""

    results: int
    known: int = 0


def pack(store: Store, file: Path, *, without: Collection[str] = ()) -> Packed:
    """Write every result of `store`, each verified, to `file`, but those of the kinds `without`.

    Compressed where the name ends in .xz or .gz; the same results give the same bytes.
    """
    kinds = {entry.key.kind for entry in store.entries()} if without else set()
    for kind in without:
        if kinds and kind not in kinds:  # Whoever misspells one would pack what was to stay.
            raise InputError(f"the store holds no result of the kind {kind!r}; {nearest(kind, kinds)}")
    total, count = sha256(), 0
    # By digest, the files of a result side by side. Compressed, headers and keys nearly vanish and scores lose about a
    # quarter of their size; weights lose next to nothing.
    with _writing(file) as stream, tarfile.open(fileobj=stream, mode="w") as archive:
        for digest in store.digests():
            entry = store.read(digest)
            if entry.key.kind in without:
                continue
            files = entry.read_all()
            about = _about(entry.key, entry.seconds, files)
            for name, data in {_KEY: about, **files}.items():
                _add(archive, f"{digest}/{name}", data)
            total.update(about)
            count += 1
        _add(archive, _END, _end(count, total.hexdigest()))
    return Packed(count)


def merge(root: Path, source: Path, *, unchecked: bool = False) -> Packed:
    """Put every result of `source` into the store at `root`; those that are there are left as they are.

    The source is a pack, a store, or a store of an earlier version. An uncompressed pack of an earlier version has no
    checksum, and is taken only if it may be `unchecked`.
    """
    store, taken, known = Store(root), 0, 0
    for key, seconds, files in _stored(source) if source.is_dir() else _packed(source, unchecked=unchecked):
        if store.write(key, files, seconds=seconds):
            taken += 1
        else:
            known += 1
    return Packed(taken, known)


def _about(key: Key, seconds: float | None, files: Mapping[str, bytes]) -> bytes:
    digests = {name: sha256(data).hexdigest() for name, data in files.items()}
    body = {"kind": key.kind, "version": key.version, "key": key.text, "seconds": seconds, "files": digests}
    return json.dumps(body | {"sha256": sha256(canonical_json(body).encode()).hexdigest()}).encode()


def _end(results: int, digest: str) -> bytes:
    return json.dumps({"results": results, "digest": digest}).encode()


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


def _packed(file: Path, *, unchecked: bool) -> Iterator[_Result]:
    """The results of a pack, each whole; nothing is written by the names in it."""
    try:
        with _reading(file) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            first = archive.next()
        # The checksum of a compressed file comes last, and damage before it may read as scores.
        with _reading(file) as stream:
            compressed = not isinstance(stream, BufferedReader)
            while compressed and stream.read(2**20):
                pass
        if first is not None and first.name != _END and not first.name.endswith(f"/{_KEY}"):
            raise DataError(f"{file} begins with {first.name!r}, which no file of packed results does; pack it again")
        with _reading(file) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            yield from _results(archive, file, checked=compressed or unchecked)
    except _DAMAGE as error:
        raise DataError(
            f"{file} is no file of packed results, or is damaged or cut short ({error}); pack it again"
        ) from error
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}") from error


def _results(archive: tarfile.TarFile, file: Path, *, checked: bool) -> Iterator[_Result]:
    gathered: dict[str, dict[str, bytes]] = {}
    total, count, end, old = sha256(), 0, b"", False
    for member in archive:
        digest, _, name = member.name.partition("/")
        reader = archive.extractfile(member) if member.isreg() else None
        if reader is None or end or "/" in name or not (name or digest == _END):
            raise DataError(f"{file} holds {member.name!r}, which no file of packed results does; pack it again")
        if digest not in gathered and gathered:
            yield _result(*gathered.popitem(), file)
            count += 1
        data = reader.read()
        if digest == _END:
            end = data
            continue
        gathered.setdefault(digest, {})[name] = data
        if name == _KEY:
            total.update(data)
            old = old or b'"sha256"' not in data
            if old and not checked:
                raise DataError(
                    f"{file} was packed by an earlier version and has no checksums; take a compressed pack, or give "
                    "--unchecked"
                )
    if gathered:
        yield _result(*gathered.popitem(), file)
        count += 1
    if end != _end(count, total.hexdigest()) and not (old and not end):
        raise DataError(f"{file} is damaged or cut short: {count} results of it are sound; pack it again")


def _result(digest: str, files: dict[str, bytes], file: Path) -> _Result:
    try:
        about = json.loads(files.pop(_KEY))
        key = Key(about["kind"], about["version"], json.loads(about["key"]))
        seconds = None if about["seconds"] is None else float(about["seconds"])
        sound = "sha256" not in about or json.loads(_about(key, seconds, files)) == about
    except (KeyError, ValueError, TypeError, InputError) as error:
        raise DataError(f"{file}: the result {digest[:12]} has no key that can be read ({error})") from error
    if key.digest != digest or not sound:
        raise DataError(f"{file}: the result {digest[:12]} is not what its checksums say; the file was changed")
    return key, seconds, files


def _stored(root: Path) -> Iterator[_Result]:
    """The results of a store, or of one of version 1: a folder for each, with a manifest that has a checksum."""
    try:
        old = json.loads((root / ABOUT).read_bytes()).get("schema_version") == 1
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"{root} is no store of results ({error}); give a pack or the folder of a store") from error
    if not old:
        store = Store(root, create=False)
        for digest in store.digests():
            entry = store.read(digest)
            yield entry.key, entry.seconds, entry.read_all()
        return
    for folder in sorted((root / "entries").glob("??/*")):
        try:
            about: dict[str, Any] = json.loads((folder / "manifest.json").read_bytes())
            checksum = about.pop("checksum")
            key = Key(about["kind"], about["version"], about["ingredients"])
            files = {name: (folder / Path(name).name).read_bytes() for name in about["files"]}
            digests = {name: sha256(data).hexdigest() for name, data in files.items()}
            sound = digests == {name: of["sha256"] for name, of in about["files"].items()}
            sound &= checksum == sha256(canonical_json(about).encode()).hexdigest() and key.digest == folder.name
        except (OSError, ValueError, KeyError, TypeError, AttributeError, InputError) as error:
            raise DataError(f"the result in {folder} cannot be read ({error}); remove it and merge again") from error
        if not sound:
            raise DataError(f"the result in {folder} is not what its checksums say; remove it and merge again")
        yield key, about["seconds"], files


@contextmanager
def _writing(file: Path) -> Iterator[BufferedIOBase]:
    """What is written goes to `file`, which must be new; a failure leaves no file.

    Neither the name nor the time goes into a compressed file, so the same content gives the same bytes.
    """
    try:
        raw = os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    except FileExistsError as error:
        raise InputError(f"{file} is there already; give another name") from error
    except OSError as error:
        raise InputError(f"{file} cannot be written: {error.strerror or error}; give another name") from error
    try:
        with raw, _compressing(raw, file.suffix) as packed:
            yield packed
    except BaseException:
        # Closed in good order, half of the content would pass for all of it.
        file.unlink(missing_ok=True)
        raise


def _compressing(raw: BufferedWriter, suffix: str) -> AbstractContextManager[BufferedIOBase]:
    if suffix == ".xz":
        return lzma.open(raw, "wb", filters=_FILTERS)
    if suffix == ".gz":
        return gzip.GzipFile("", "wb", fileobj=raw, mtime=0)
    return nullcontext(raw)


@contextmanager
def _reading(file: Path) -> Iterator[BufferedIOBase]:
    """The content of `file`, compressed or not by its first bytes."""
    with file.open("rb") as raw:
        start = raw.read(len(_XZ))
        raw.seek(0)
        with _expanding(raw, start) as content:
            yield content


def _expanding(raw: BufferedReader, start: bytes) -> AbstractContextManager[BufferedIOBase]:
    if start == _XZ:
        return lzma.open(raw)
    return gzip.open(raw) if start.startswith(_GZ) else nullcontext(raw)
