"""Run directories that several processes may be started on at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from filelock import FileLock

from ..runs.directory import RunDirectory, start_run


def start_shared_run(out: Path, *, kind: str, config: Mapping[str, Any]) -> RunDirectory:
    """`start_run` by one process of this machine at a time."""
    # The folder is not there yet to hold the lock.
    name = sha256(str(out.resolve()).encode()).hexdigest()[:24]
    with FileLock(Path(gettempdir()) / f"warp-{os.getuid()}-{name}.lock", mode=0o600):
        return start_run(out, kind=kind, config=config)


def run_lock(run: RunDirectory) -> FileLock:
    """What a process holds while no other may write in the run."""
    return FileLock(run.path / ".lock", mode=0o600)
