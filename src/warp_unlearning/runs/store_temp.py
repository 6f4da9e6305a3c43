"""Folders to write in, each with a lock that its process holds, so that leftovers of dead processes can be told."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from filelock import FileLock, Timeout

_LOCK = ".lock"
_PATIENCE = 10.0


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """An empty folder in `parent`, which may be moved elsewhere; if not, it is removed at the end with all in it.

    The lock file comes first and is held all the while; the kernel lets go of it when the process dies.
    """
    folder = parent / uuid4().hex
    lock = FileLock(parent / f"{folder.name}{_LOCK}", mode=0o600, thread_local=False)
    # A sweep may hold the lock for an instant, and removes its file; filelock then starts again with another file.
    with lock.acquire(timeout=_PATIENCE):
        try:
            folder.mkdir(mode=0o700)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            Path(lock.lock_file).unlink(missing_ok=True)


def sweep(parent: Path) -> int:
    """Remove folders whose process is gone; says how many. Those of a live process stay."""
    swept = 0
    for folder in sorted(p for p in parent.iterdir() if p.is_dir()):
        swept += _sweep(parent / f"{folder.name}{_LOCK}", folder)
    for lock in parent.glob(f"*{_LOCK}"):
        _sweep(lock, lock.with_suffix(""))
    return swept


def _sweep(lock_file: Path, folder: Path) -> bool:
    lock = FileLock(lock_file, mode=0o600, thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    try:
        existed = folder.is_dir()
        shutil.rmtree(folder, ignore_errors=True)
        lock_file.unlink(missing_ok=True)
    finally:
        lock.release()
    return existed
