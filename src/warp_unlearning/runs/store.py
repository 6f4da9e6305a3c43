"""The store of results: one folder an entry, named by the digest of its key.

    store.json              what this folder is, and of which version
    entries/ab/abcdef.../   the files of one entry, and its manifest
    temp/                   entries that are being written
    claims/                 locks of the jobs that are being done
    aside/                  entries that were found corrupt

An entry is written in a temporary folder of the store: each file, then the manifest, each synced to disk; then the
folder is renamed to its place. The rename is what completes an entry. Renaming files one by one with the manifest last
would also leave no half entry behind a crash, but two writers of one key could mix their files under one manifest; a
folder arrives whole, and a second writer's rename onto it fails, so the first wins. A process killed at any moment
leaves either nothing or a complete entry, and perhaps a temporary folder, which is swept once its process is gone.

The store may lie on a disk that several machines share, if its file system knows rename and flock across machines
(NFS 4 does).
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from errno import EEXIST, ENOTEMPTY
from pathlib import Path
from uuid import uuid4

from ..data.files import sync_folder
from ..errors import InputError
from .key import Key
from .store_claim import claimed
from .store_entry import (
    MANIFEST,
    Damage,
    Manifest,
    check_files,
    describe,
    manifest_bytes,
    read_file,
    read_manifest,
)
from .store_errors import CorruptEntry, MissingEntry, explain
from .store_file import write_synced
from .store_root import open_root, read_about
from .store_temp import sweep, temporary_folder

_DIGITS = frozenset("0123456789abcdef")


@dataclass(frozen=True)
class Entry:
    """One result: its manifest, and its files when asked for, each verified when it is read."""

    store: Store
    digest: str
    manifest: Manifest

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its files, sorted."""
        return tuple(sorted(self.manifest.files))

    def read(self, name: str) -> bytes:
        """One file, verified; a corrupt one sets the entry aside and raises `CorruptEntry`."""
        if name not in self.manifest.files:
            raise InputError(f"the entry {self.manifest.key} has no file {name!r}; it has {', '.join(self.names)}")
        folder = self.store.folder(self.digest)
        with self.store.judging(self.digest):
            return read_file(folder, name, self.manifest.files[name])

    def read_all(self) -> dict[str, bytes]:
        """Every file, verified."""
        return {name: self.read(name) for name in self.names}


@dataclass(frozen=True)
class Faults:
    """What a check of a whole store found: how many entries are intact, and what is wrong with the others."""

    intact: int
    corrupt: Mapping[str, str]


@dataclass(frozen=True)
class Cleared:
    """What was removed from a store: digests of entries, and the size in bytes of all that is gone."""

    entries: tuple[str, ...]
    leftovers: int
    size: int


@dataclass(frozen=True)
class Store:
    """Results by key, at the folder `root`, which is made where it is missing unless `create` is False.

    Files have mode 0600, folders 0700.
    """

    root: Path
    create: bool = field(default=True, repr=False, compare=False)

    def __post_init__(self) -> None:
        root = Path(self.root).absolute()
        object.__setattr__(self, "root", root)
        open_root(root, create=self.create)

    @property
    def identity(self) -> str:
        """Drawn when the store was made: tells whether two machines that name one path see one store."""
        return str(read_about(self.root).get("identity"))

    def folder(self, digest: str) -> Path:
        """Where the entry of a key with this digest lies, or would."""
        return self.root / "entries" / digest[:2] / digest

    def has(self, key: Key) -> bool:
        """Whether there is an entry; looks at one file name and verifies nothing."""
        manifest = self.folder(key.digest) / MANIFEST
        try:
            return manifest.is_file()
        except OSError as error:
            raise explain(error, f"look for {manifest}") from error

    def write(self, key: Key, files: Mapping[str, bytes], *, seconds: float | None = None) -> bool:
        """Make `files` the entry of `key`, in one step; `seconds` is how long the work took.

        False where an entry was there already, or came first: that one stays.
        """
        check_files(files)
        if self.has(key):
            return False
        manifest = manifest_bytes(describe(key, files, seconds=seconds))
        try:
            with temporary_folder(self.root / "temp") as entry:
                write_synced(entry, {**files, MANIFEST: manifest})
                return self._place(entry, key)
        except OSError as error:
            raise explain(error, f"write the entry {key} to {self.root}") from error

    def read(self, key: Key) -> Entry:
        """The entry of `key`, its manifest verified. Its files are, when they are read.

        Raises `MissingEntry`, or `CorruptEntry` after setting the entry aside.
        """
        if not self.has(key):
            raise self._missing(key.digest)
        with self.judging(key.digest):
            return Entry(self, key.digest, read_manifest(self.folder(key.digest), key.digest))

    def digests(self) -> tuple[str, ...]:
        """Digests of all entries, sorted."""
        return tuple(sorted(p.name for p in (self.root / "entries").glob("??/*") if _is_digest(p.name)))

    def entries(self) -> Iterator[Entry]:
        """All entries whose manifest can be read; `verify` tells of the others."""
        for digest in self.digests():
            try:
                yield self.look(digest)
            except Damage:
                continue

    def look(self, digest: str) -> Entry:
        """The entry with this digest; raises `Damage`, and sets nothing aside."""
        return Entry(self, digest, read_manifest(self.folder(digest), digest))

    def fault(self, digest: str) -> str:
        """What is wrong with an entry, all of its files read; empty where nothing is. Sets nothing aside."""
        try:
            manifest = read_manifest(self.folder(digest), digest)
            for name, about in manifest.files.items():
                read_file(self.folder(digest), name, about)
        except Damage as damage:
            return str(damage)
        return ""

    def verify(self) -> Faults:
        """Read every file of every entry. Sets nothing aside."""
        faults = {digest: self.fault(digest) for digest in self.digests()}
        corrupt = {digest: fault for digest, fault in faults.items() if fault}
        return Faults(len(faults) - len(corrupt), corrupt)

    def remove(self, digest: str) -> int:
        """Remove one entry, in one step for its readers; the bytes it had."""
        folder = self.folder(digest)
        try:
            with temporary_folder(self.root / "temp") as gone:
                try:
                    folder.rename(gone)
                except FileNotFoundError:
                    return 0
                return _size(gone)
        except OSError as error:
            raise explain(error, f"remove {folder}") from error

    def gc(self, *, keep: Collection[Key]) -> Cleared:
        """Remove every entry whose key is not in `keep`, and the leftovers."""
        kept = {key.digest for key in keep}
        gone = tuple(digest for digest in self.digests() if digest not in kept)
        size = sum(self.remove(digest) for digest in gone)
        rest = self.clear_leftovers()
        return Cleared(gone, rest.leftovers, size + rest.size)

    def clear_leftovers(self) -> Cleared:
        """Remove what dead processes left, and what was set aside."""
        before = _size(self.root / "temp") + _size(self.root / "aside")
        try:
            count = sweep(self.root / "temp")
            sweep(self.root / "claims")
            for folder in (self.root / "aside").iterdir():
                shutil.rmtree(folder, ignore_errors=True)
                count += 1
        except OSError as error:
            raise explain(error, f"clear {self.root}") from error
        return Cleared((), count, before - _size(self.root / "temp") - _size(self.root / "aside"))

    def sweep(self) -> int:
        """Remove temporary folders of dead processes; how many there were."""
        try:
            return sweep(self.root / "temp")
        except OSError as error:
            raise explain(error, f"sweep {self.root / 'temp'}") from error

    def size(self) -> int:
        """Size of all files in all entries, manifests included."""
        return _size(self.root / "entries")

    def claim(self, key: Key) -> AbstractContextManager[bool]:
        """A context that says whether this process may do the job of `key`: False while another does it."""
        return claimed(self.root / "claims" / f"{key.digest}.lock")

    def set_aside(self, digest: str) -> None:
        """Take an entry out of its place, for its job to be done again."""
        try:
            self.folder(digest).rename(self.root / "aside" / f"{digest}-{uuid4().hex[:8]}")
        except FileNotFoundError:
            return
        except OSError as error:
            raise explain(error, f"set the corrupt entry {self.folder(digest)} aside") from error

    @contextmanager
    def judging(self, digest: str) -> Iterator[None]:
        """Turn `Damage` into `CorruptEntry`, and set the damaged entry aside, unless a good one has taken its place."""
        try:
            yield
        except Damage as damage:
            # Another process may have set it aside meanwhile, and done it again.
            if not self.folder(digest).exists():
                raise self._missing(digest) from damage
            if self.fault(digest):
                self.set_aside(digest)
            raise CorruptEntry(
                f"the entry {digest[:12]} in {self.root} is corrupt: {damage}; it was set aside, run its job again",
                digest=digest,
            ) from damage

    def _missing(self, digest: str) -> MissingEntry:
        return MissingEntry(f"{self.root} has no entry {digest[:12]}; run its job", digest=digest)

    def _place(self, entry: Path, key: Key) -> bool:
        place = self.folder(key.digest)
        place.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            entry.rename(place)
        except OSError as error:
            if error.errno not in (EEXIST, ENOTEMPTY):
                raise
            if self.has(key):
                return False
            # A folder without a manifest: somebody removed files by hand.
            self.set_aside(key.digest)
            entry.rename(place)
        sync_folder(place.parent)
        return True


def _is_digest(name: str) -> bool:
    return len(name) == 64 and _DIGITS.issuperset(name)


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total
