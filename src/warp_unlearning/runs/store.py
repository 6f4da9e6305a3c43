"""The store of results: one file a result, named by the digest of its key, written by the holder of its claim alone.

    store.json              what this folder is
    entries/ab/<digest>     a whole result (see `entry`)
    claims/<digest>         locked while somebody does the job; the kernel frees the lock with its process
    claims/<digest>.starts  one line for each time that a run began the job and its process died
    claims/<digest>.part    the result being written
    failed/<digest>         why the job failed, in the run that it names
    failed/<digest>.damaged a damaged result, out of its place so that its job is done again

A process killed at any moment leaves a whole result or none: `.part` is synced to disk, then linked into its place.
What is under `entries` can still be damaged by a disk, or by two writers where a network disk's locks do not hold; a
reader verifies everything that it reads. Several machines may share the disk if its locks hold across them (NFS 4).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from errno import EACCES, EMLINK, ENOSYS, ENOTSUP, EPERM
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO
from uuid import uuid4

from filelock import FileLock, Timeout

from ..data.files import sync_folder, write_atomically
from .entry import (
    NO_LINK,
    SCHEMA_VERSION,
    Damaged,
    Entry,
    Fault,
    Missing,
    StoreError,
    check_files,
    content,
    explain,
    header_bytes,
    read_entry,
)
from .keys import Key

__all__ = ["Claim", "Damaged", "Entry", "Failure", "Missing", "Store", "StoreError"]

ABOUT = "store.json"
_WHAT = "warp-unlearning store of results"
_FOLDERS = ("entries", "claims", "failed")
_LEFT = (".part", ".starts")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Failure:
    """Why a job failed."""

    reason: str
    traceback: str = ""


@dataclass(eq=False)
class Claim:
    """The right to do one job, held by one process at a time. `deaths` counts the starts of this run whose process
    died. A start that is noted is forgotten when the claim ends, unless `forget` is unset.
    """

    store: Store
    key: Key
    run: str
    deaths: int
    forget: bool = False

    def begin(self) -> None:
        """Note that this run begins the job, in case its process dies."""
        try:
            with _fresh(self.store._claim_file(self.key.digest, ".starts")) as file:
                # Lines of other runs, which somebody ended, say nothing of the job.
                file.write(f"{self.run}\n".encode() * (self.deaths + 1))
        except OSError as error:
            raise explain(error, f"begin the job {self.key} in {self.store.root}") from error
        self.forget = True

    def write(self, files: Mapping[str, bytes], *, seconds: float | None = None) -> bool:
        """Make `files` the result, in one step; False where there is one already, which stays."""
        check_files(files)
        digest, store = self.key.digest, self.store
        part, place = store._claim_file(digest, ".part"), store.path(digest)
        try:
            with _fresh(part) as file:
                file.write(header_bytes(self.key, files, seconds))
                file.writelines(files[name] for name in sorted(files))
                file.flush()
                os.fsync(file.fileno())
            if not place.parent.is_dir():
                place.parent.mkdir(mode=0o700, exist_ok=True)
                sync_folder(place.parent.parent)
            written = _link(part, place)
            sync_folder(place.parent)
            (store.root / "failed" / digest).unlink(missing_ok=True)
        except OSError as error:
            raise explain(error, f"write the entry {self.key} to {store.root}") from error
        if not written and not store.has(self.key):
            raise StoreError(f"{place} is no entry, and in the way of one; remove it")
        return written

    def fail(self, reason: str, traceback: str = "") -> None:
        """Note why the job failed in this run."""
        note = {"run": self.run, "reason": reason, "traceback": traceback}
        try:
            write_atomically(self.store.root / "failed" / self.key.digest, json.dumps(note).encode())
        except OSError as error:
            raise explain(error, f"note that {self.key} failed ({reason})") from error


@dataclass(frozen=True)
class Store:
    """Results by key, in the folder `root`. With `create` it is made where it is missing, when a job is first claimed.

    Files have mode 0600, folders 0700.
    """

    root: Path
    create: bool = field(default=True, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", Path(self.root).absolute())
        try:
            _check(self.root, create=self.create)
        except OSError as error:
            raise explain(error, f"open the store {self.root}") from error

    @property
    def identity(self) -> str:
        """Drawn when the store is made: tells whether two machines that name one path see one store."""
        self._make()
        return str(_about(self.root).get("identity"))

    def path(self, digest: str) -> Path:
        """Where the entry of a key with this digest lies, or would."""
        return self.root / "entries" / digest[:2] / digest

    def has(self, key: Key) -> bool:
        """Whether there is an entry; looks at one file name and verifies nothing."""
        path = self.path(key.digest)
        try:
            return S_ISREG(os.lstat(path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise explain(error, f"look for {path}") from error

    def read(self, key: Key | str) -> Entry:
        """The entry of a key, or of its digest, the header verified; the files are when they are read.

        Raises `Missing`, or `Damaged` after setting the entry aside.
        """
        digest = key if isinstance(key, str) else key.digest
        with self._judging(digest):
            return self.look(digest)

    def look(self, digest: str) -> Entry:
        """The entry with this digest; raises `Fault`, and sets nothing aside, or `Missing`."""
        return read_entry(self.path(digest), self._judging)

    def write(self, key: Key, files: Mapping[str, bytes], *, seconds: float | None = None) -> bool:
        """Claim `key` and make `files` its entry; False where there is one already, or another process makes it."""
        check_files(files)
        with self.claim(key) as claim:
            return claim is not None and not self.has(key) and claim.write(files, seconds=seconds)

    def digests(self) -> tuple[str, ...]:
        """Digests of all entries, sorted."""
        found: list[str] = []
        try:
            for folder in self._list("entries"):
                with suppress(NotADirectoryError, FileNotFoundError):
                    found += filter(_DIGEST.fullmatch, os.listdir(self.root / "entries" / folder))
        except OSError as error:
            raise explain(error, f"list {self.root}") from error
        return tuple(sorted(found))

    def entries(self) -> Iterator[Entry]:
        """All entries whose header can be read; `fault` tells of the others."""
        for digest in self.digests():
            with suppress(Fault, Missing):
                yield self.look(digest)

    def fault(self, digest: str) -> str:
        """What is wrong with an entry, all of it read; empty where nothing is. Sets nothing aside."""
        try:
            for name, about in self.look(digest).files.items():
                content(self.path(digest), name, about)
        except (Fault, Missing) as fault:
            return str(fault)
        return ""

    def set_aside(self, digest: str) -> bool:
        """Take a damaged entry out of its place, for its job to be done again; False where it is sound or in work."""
        with self._locked(digest) as mine:
            if not mine or not os.path.lexists(self.path(digest)) or not self.fault(digest):
                return False
            self._move_aside(digest)
        return True

    def failures(self, run: str) -> dict[str, Failure]:
        """Why jobs failed in `run`, by the digests of their keys."""
        failed = {digest: self.failure(digest, run) for digest in filter(_DIGEST.fullmatch, self._list("failed"))}
        return {digest: failure for digest, failure in failed.items() if failure is not None}

    def failure(self, digest: str, run: str) -> Failure | None:
        """Why a job failed in `run`, if it did."""
        with suppress(OSError, ValueError, KeyError):
            note = json.loads((self.root / "failed" / digest).read_bytes())
            if note["run"] == run:
                return Failure(note["reason"], note["traceback"])
        return None

    def remove(self, *digests: str) -> int:
        """Remove entries; returns how many bytes they had."""
        return sum(_remove(self.path(digest)) or 0 for digest in digests if _DIGEST.fullmatch(digest))

    def gc(self) -> tuple[int, int]:
        """Remove leftovers of dead processes, notes of failures and what was set aside; how many files and bytes."""
        notes = [name for name in self._list("failed") if _DIGEST.fullmatch(name.lstrip(".")[:64])]
        gone = [_remove(self.root / "failed" / name) for name in notes]
        for digest in {name[:64] for name in self._list("claims")}:
            if _DIGEST.fullmatch(digest):
                with self._locked(digest) as mine:  # The end of a claim removes the file of its lock.
                    gone += [_remove(self._claim_file(digest, suffix)) for suffix in _LEFT if mine]
        sizes = [size for size in gone if size is not None]
        return len(sizes), sum(sizes)

    @contextmanager
    def claim(self, key: Key, run: str = "") -> Iterator[Claim | None]:
        """The right to do the job of `key` for `run`, or None while another process has it."""
        starts = self._claim_file(key.digest, ".starts")
        with self._locked(key.digest) as mine:
            if not mine:
                yield None
                return
            claim = Claim(self, key, run, 0)
            with suppress(OSError):
                claim.deaths = starts.read_bytes().split().count(run.encode())
            try:
                yield claim
            finally:
                if claim.forget:
                    starts.unlink(missing_ok=True)
                self._claim_file(key.digest, ".part").unlink(missing_ok=True)

    @contextmanager
    def _locked(self, digest: str) -> Iterator[bool]:
        """Whether this process got the lock of a claim, without waiting."""
        file = self._claim_file(digest)
        lock = FileLock(file, mode=0o600, thread_local=False)
        try:
            self._make()
            lock.acquire(timeout=0)
        except Timeout:
            yield False
            return
        except OSError as error:
            raise explain(error, f"claim {file}") from error
        try:
            yield True
        finally:
            # Removed while held: whoever waits for this very file sees that it has no name left, and starts again.
            with suppress(PermissionError):
                file.unlink(missing_ok=True)
            lock.release()

    @contextmanager
    def _judging(self, digest: str) -> Iterator[None]:
        """Turn a fault into `Damaged`, and set the entry aside unless a good one has taken its place."""
        try:
            yield
        except Fault as fault:
            what = f"the entry {digest[:12]} in {self.root} is damaged: {fault}"
            try:
                self.set_aside(digest)
            except StoreError as error:
                raise StoreError(f"{what}; it cannot be set aside: {error}") from error
            raise Damaged(f"{what}; it was set aside, run its job again", digest=digest) from fault

    def _move_aside(self, digest: str) -> None:
        try:
            os.replace(self.path(digest), self.root / "failed" / f"{digest}.damaged")
        except FileNotFoundError:
            return
        except OSError as error:
            raise explain(error, f"set the damaged entry {self.path(digest)} aside") from error

    def _list(self, folder: str) -> list[str]:
        try:
            return os.listdir(self.root / folder)
        except FileNotFoundError:
            return []

    def _make(self) -> None:
        """Make what is missing of the store; copies and archives leave out empty folders."""
        if all((self.root / name).exists() for name in (ABOUT, *_FOLDERS)):
            return
        try:
            _make(self.root)
        except OSError as error:
            raise explain(error, f"make a store of results at {self.root}") from error

    def _claim_file(self, digest: str, suffix: str = "") -> Path:
        return self.root / "claims" / f"{digest}{suffix}"


def _link(part: Path, place: Path) -> bool:
    """Give a finished file its place; False where there is one already."""
    free = True
    try:
        os.link(part, place)
    except FileExistsError:
        free = False
    except OSError as error:
        if error.errno not in (EPERM, EACCES, EMLINK, ENOSYS, ENOTSUP):
            raise
        # Some disks know no links. The holder of the claim is alone, so looking first is as good.
        if free := not os.path.lexists(place):
            os.rename(part, place)
    part.unlink(missing_ok=True)
    return free


def _fresh(path: Path) -> BinaryIO:
    """A new file, which nobody else has open."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK, 0o600), "wb")


def _remove(path: Path) -> int | None:
    """Remove a file, and nothing else; its bytes, or None where there is none."""
    try:
        size = os.lstat(path).st_size
        path.unlink()
    except (FileNotFoundError, IsADirectoryError):
        return None
    except OSError as error:
        raise explain(error, f"remove {path}") from error
    return size


def _check(root: Path, *, create: bool) -> None:
    """Refuse what is no store that this program reads, and no place for a new one."""
    if not (root / ABOUT).is_file():
        if root.exists() and not root.is_dir():
            raise StoreError(f"{root} is a file, no store of results; give a folder")
        if not create:
            raise StoreError(f"{root} is no store of results: it has no {ABOUT}; give the folder of one")
        # A process killed while it made a store leaves folders of the store, and files that begin so.
        strange = root.exists() and any(p.name not in _FOLDERS and ABOUT not in p.name for p in root.iterdir())
        if strange and not (root / ABOUT).is_file():
            raise StoreError(f"{root} has files in it and is no store of results; give an empty or a new folder")
        return
    about = _about(root)
    version = about.get("schema_version")
    if about.get("what") != _WHAT:
        raise StoreError(f"{root / ABOUT} is not that of a store of results; give another folder")
    if version == 1:
        way_out = f"take it into a new one with `warp runs merge --store NEW {root}`"
        raise StoreError(f"{root} is a store of an earlier version, with a folder for each result; {way_out}")
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"the store {root} has schema version {version!r} and {SCHEMA_VERSION} is read here; "
            "use the version of this package that wrote it, or give another folder"
        )


def _about(root: Path) -> dict[str, Any]:
    try:
        about = json.loads((root / ABOUT).read_bytes())
    except OSError as error:
        raise explain(error, f"read {root / ABOUT}") from error
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{root / ABOUT} is no JSON: {error}; the folder is no store, or is damaged") from error
    return about if isinstance(about, dict) else {}


def _make(root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in _FOLDERS:
        (root / name).mkdir(exist_ok=True, mode=0o700)
    if (root / ABOUT).is_file():
        return
    draft = root / f".{ABOUT}-{uuid4().hex}"
    try:
        with FileLock(draft, mode=0o600):
            _require_locks(draft)
        about = {"what": _WHAT, "schema_version": SCHEMA_VERSION, "identity": uuid4().hex}
        write_atomically(draft, (json.dumps(about, indent=1) + "\n").encode())
        _link(draft, root / ABOUT)  # Of two processes that make the store at once, the first one's identity stays.
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(root)


def _require_locks(locked: Path) -> None:
    try:
        FileLock(locked, mode=0o600).acquire(timeout=0).lock.release()
    except Timeout:
        return
    raise StoreError(
        f"{locked.parent} lies on a disk whose locks do not hold, so jobs might be done twice; give another"
    )
