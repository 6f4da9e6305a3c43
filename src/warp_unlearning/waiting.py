"""Waiting without keeping others from work, for threads that take turns.

Of threads that take turns one works at a time. One that only waits, for a GPU say, leaves its turn to the others, and
gets another once it has waited. A thread that takes no turns just waits, and so does one that keeps its turn, while it
has changed what all threads of the process share.

Nobody waits so with a lock in hand, since the next to work may want it: a `cached_property` holds one while it is
computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import local
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Leave = Callable[[], AbstractContextManager[object]]

_THIS = local()


@contextmanager
def idly() -> Iterator[None]:
    """A block in which this thread only waits, and others may work."""
    if not may_leave():
        yield
        return
    with _THIS.leave():
        yield


@contextmanager
def keeping_turn() -> Iterator[None]:
    """A block in which this thread works alone, also while it waits."""
    _THIS.kept = getattr(_THIS, "kept", 0) + 1
    try:
        yield
    finally:
        _THIS.kept -= 1


@contextmanager
def with_work(work: Callable[[], None]) -> Iterator[None]:
    """A block before whose end this thread has something to do, at any time: where it would only wait for long
    (`work_meanwhile`), or else at the end. An error of the block leaves it undone.
    """
    outer = getattr(_THIS, "work", None)
    _THIS.work = work
    try:
        yield
        work_meanwhile()
    finally:
        _THIS.work = outer


def work_meanwhile() -> None:
    """Do what this thread has to do, if there is something: a long wait is coming."""
    work: Callable[[], None] | None = getattr(_THIS, "work", None)
    if work is not None:
        _THIS.work = None
        work()


def takes_turns() -> bool:
    """Whether this thread shares what it works with, such as a GPU, with others of its process."""
    return getattr(_THIS, "leave", None) is not None


def may_leave() -> bool:
    """Whether others would work while this thread waits."""
    return takes_turns() and not getattr(_THIS, "kept", 0)


def take_turns(leave: Leave) -> None:
    """From here on this thread takes turns with others; it leaves its turn by entering what `leave` gives."""
    _THIS.leave = leave


def await_device(device: torch.device) -> None:
    """Wait for what the current stream of a GPU has been given, where that lets others work; reading comes next."""
    if device.type != "cuda" or not may_leave():
        return
    # Studies on processors do without torch in the process that hands out the work.
    import torch

    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record(torch.cuda.current_stream(device))
    with idly():
        done.synchronize()
