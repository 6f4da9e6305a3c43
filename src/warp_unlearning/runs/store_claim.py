"""A claim on a key: whoever does its job holds a lock, which the kernel lets go of when the process dies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from .store_errors import explain


@contextmanager
def claimed(lock_file: Path) -> Iterator[bool]:
    """Whether the claim was got; False where another process holds it, without waiting."""
    lock = FileLock(lock_file, mode=0o600, thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        yield False
        return
    except OSError as error:
        raise explain(error, f"claim {lock_file}") from error
    try:
        yield True
    finally:
        # Removed while held: whoever waits for this very file sees that it has no name left, and starts again.
        lock_file.unlink(missing_ok=True)
        lock.release()
