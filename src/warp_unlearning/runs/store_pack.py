"""Results of one store in a file, to be taken into another: how a study goes on on another machine."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError, InputError, nearest
from .compressed import DAMAGE, reading, require_whole, writing
from .key import Key
from .store import Store

_ABOUT = ".key.json"
_UNREADABLE: tuple[type[Exception], ...] = (tarfile.TarError, *DAMAGE)


@dataclass(frozen=True)
class Packed:
    """How many results went into a file, or were taken from it; `known` were there already."""

    results: int
    known: int = 0


def pack(store: Store, file: Path, *, without: Collection[str] = ()) -> Packed:
    """Write every result of `store`, each verified, to `file`, but those of the kinds `without`.

    A tar file, compressed where the name ends in .xz or .gz; the same results give the same bytes.
    """
    if file.exists():
        raise InputError(f"{file} is there already; give another name")
    _require_kinds(store, without)
    count = 0
    # By digest, the files of a result side by side. Compressed, headers and keys nearly vanish and scores lose about a
    # quarter of their size; weights lose next to nothing.
    with writing(file) as stream, tarfile.open(fileobj=stream, mode="w") as archive:
        for entry in store.entries():
            key = entry.manifest.key
            if key.kind in without:
                continue
            about = {"kind": key.kind, "version": key.version, "key": key.text, "seconds": entry.manifest.seconds}
            files = {_ABOUT: json.dumps(about).encode(), **entry.read_all()}
            for name, data in files.items():
                info = tarfile.TarInfo(f"{key.digest}/{name}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
            count += 1
    return Packed(count)


def _require_kinds(store: Store, kinds: Collection[str]) -> None:
    """Refuse a kind that no result of the store has: whoever misspells one would pack what was to stay."""
    held = {entry.manifest.key.kind for entry in store.entries()} if kinds else set()
    for kind in kinds:
        if held and kind not in held:
            raise InputError(f"the store holds no result of the kind {kind!r}; {nearest(kind, held)}")


def take_in(store: Store, file: Path) -> Packed:
    """Put every result of `file` into `store`; those that are there are left as they are."""
    taken = known = 0
    try:
        # The checksum of a compressed file comes last, and damage before it may read as scores.
        require_whole(file)
        with reading(file) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            for key, seconds, files in _results(archive, file):
                if store.has(key):
                    known += 1
                else:
                    store.write(key, files, seconds=seconds)
                    taken += 1
    except _UNREADABLE as error:
        raise DataError(
            f"{file} is no file of packed results, or is damaged or cut short ({error}); pack it again"
        ) from error
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}") from error
    return Packed(taken, known)


def require_packed(file: Path) -> None:
    """Refuse what does not begin as a file of packed results does, before a store is made for it."""
    try:
        with reading(file) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            first = archive.next()
    except _UNREADABLE as error:
        raise DataError(
            f"{file} is no file of packed results ({error}); give one that `warp runs pack` wrote"
        ) from error
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}") from error
    if first is not None and not first.name.endswith(f"/{_ABOUT}"):
        raise DataError(f"{file} begins with {first.name!r}, which no file of packed results does; pack it again")


def _results(archive: tarfile.TarFile, file: Path) -> Iterator[tuple[Key, float | None, dict[str, bytes]]]:
    """The results of an archive one after another; nothing is written by the names in it."""
    gathered: dict[str, dict[str, bytes]] = {}
    for member in archive:
        digest, _, name = member.name.partition("/")
        reader = archive.extractfile(member)
        if reader is None or not name or "/" in name:
            raise DataError(f"{file} holds {member.name!r}, which no file of packed results does; pack it again")
        if digest not in gathered and gathered:
            yield _result(*gathered.popitem(), file)
        gathered.setdefault(digest, {})[name] = reader.read()
    if gathered:
        yield _result(*gathered.popitem(), file)


def _result(digest: str, files: dict[str, bytes], file: Path) -> tuple[Key, float | None, dict[str, bytes]]:
    try:
        about = json.loads(files.pop(_ABOUT))
        key = Key(about["kind"], about["version"], json.loads(about["key"]))
        seconds = None if about["seconds"] is None else float(about["seconds"])
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(f"{file}: the result {digest[:12]} has no key that can be read ({error})") from error
    if key.digest != digest:
        raise DataError(f"{file}: the result {digest[:12]} has the key {key.digest[:12]}; the file was changed")
    return key, seconds, files
