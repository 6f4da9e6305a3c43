"""Short times in which no garbage is collected.

Looking through all objects of a process takes tens of milliseconds, which is as long as a teleport, and may destroy a
captured graph while another is captured, which ends the capture. What is put off is done soon after.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_LOCK = Lock()
_BLOCKS = 0
_ENABLED = False


@contextmanager
def no_collection() -> Iterator[None]:
    """Let no garbage be collected by itself until the last of such blocks has ended, in whichever thread."""
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _BLOCKS, _ENABLED
    with _LOCK:
        if _BLOCKS == 0:
            _ENABLED = gc.isenabled()
            gc.disable()
        _BLOCKS += 1


def _leave() -> None:
    global _BLOCKS
    with _LOCK:
        _BLOCKS -= 1
        if _BLOCKS == 0 and _ENABLED:
            gc.enable()
