"""Waiting without keeping others from work, for threads that take turns.

Of threads that take turns one works at a time. One that only waits, for a GPU say, leaves its turn to the others, and
gets another once it has waited. A thread that takes no turns just waits.
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
    leave: Leave | None = getattr(_THIS, "leave", None)
    if leave is None:
        yield
        return
    with leave():
        yield


def take_turns(leave: Leave) -> None:
    """From here on this thread takes turns with others; it leaves its turn by entering what `leave` gives."""
    _THIS.leave = leave


def await_device(device: torch.device) -> None:
    """Wait for what the current stream of a GPU has been given, where that lets others work; reading comes next."""
    if device.type != "cuda" or getattr(_THIS, "leave", None) is None:
        return
    # Studies on processors do without torch in the process that hands out the work.
    import torch

    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record(torch.cuda.current_stream(device))
    with idly():
        done.synchronize()
