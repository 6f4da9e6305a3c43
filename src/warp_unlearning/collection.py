"""Short times in which no garbage is collected by itself.

Looking through all objects of a process takes tens of milliseconds, which is as long as a teleport, and may destroy a
captured graph while another is captured, which ends the capture. What is put off is done soon after.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock


@dataclass
class _State:
    """How many blocks there are that no collection may fall into, whether somebody puts them off, and whether there
    would be any.
    """

    forbidden: int = 0
    put_off: bool = False
    wanted: bool = False


_LOCK = Lock()
_STATE = _State()


@contextmanager
def no_collection() -> Iterator[None]:
    """Let no garbage be collected until the last of such blocks has ended, in whichever thread."""
    _change(forbidden=1)
    try:
        yield
    finally:
        _change(forbidden=-1)


@contextmanager
def collection_put_off() -> Iterator[None]:
    """Let none be collected if possible. Of several threads the first has its way, and the others what is left of it:
    however many there are, somebody's end comes soon.
    """
    with _LOCK:
        first = not _STATE.put_off
    if not first:
        yield
        return
    _change(put_off=True)
    try:
        yield
    finally:
        _change(put_off=False)


def _change(*, forbidden: int = 0, put_off: bool | None = None) -> None:
    with _LOCK:
        before = _STATE.forbidden > 0 or _STATE.put_off
        if not before:
            _STATE.wanted = gc.isenabled()
        _STATE.forbidden += forbidden
        _STATE.put_off = _STATE.put_off if put_off is None else put_off
        now = _STATE.forbidden > 0 or _STATE.put_off
        if now and not before:
            gc.disable()
        elif before and not now and _STATE.wanted:
            gc.enable()
