"""Independent pieces of work spread over a few streams of a GPU, none of which fills it.

Small pieces keep the host busier than the GPU: each stream has a thread of its own that launches what it is given, as
far as Python lets threads run at once. Lanes that take turns launch theirs one after another: the others have the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import TypeVar

import torch

from ..streams_beside import sides_of
from ..waiting import takes_turns
from .gpu_library import load_gpu_library, make_context_current

Made = TypeVar("Made")


class SideStreams:
    """Pieces of one block, on a GPU each on one of a few streams beside the current one; elsewhere one after another.

    They begin after what the current stream has been given, and what it is given after the block comes after them all.
    Streams belong to the current one: what they allocate is used on no other but it, so that memory which is let go of
    is not handed on before the current stream is done with it. A current stream may have none.
    """

    def __init__(self, device: torch.device) -> None:
        self._streams = sides_of(torch.cuda.current_stream(device)) if device.type == "cuda" else []

    def __enter__(self) -> SideStreams:
        """Begin."""
        if self._streams:
            before = torch.cuda.current_stream(self._streams[0].device).record_event()
            for stream in self._streams:
                stream.wait_event(before)
        return self

    @contextmanager
    def piece(self, number: int) -> Iterator[None]:
        """The place of one piece of work."""
        if not self._streams:
            yield
            return
        with torch.cuda.stream(self._streams[number % len(self._streams)]):
            yield

    def __exit__(self, *_: object) -> None:
        """Have the current stream wait."""
        if self._streams:
            current = torch.cuda.current_stream(self._streams[0].device)
            for stream in self._streams:
                current.wait_stream(stream)

    def each(self, pieces: Sequence[Callable[[], Made]], *, apart: bool = True) -> list[Made]:
        """What the pieces give. They must not depend on each other, and lie on the device of the streams. Those that
        are to be launched `apart` are so by several threads, where that is possible: it pays for pieces that launch
        much by one call, while threads whose calls are short wait for each other.
        """
        settings = torch.is_autocast_enabled("cuda") or torch.is_inference_mode_enabled()
        if not self._streams:
            return [piece() for piece in pieces]
        if not apart or takes_turns() or settings:
            return self._in_turn(pieces)
        load_gpu_library(self._streams[0].device)
        return launched_apart(pieces, len(self._streams), self._share)

    def _in_turn(self, pieces: Sequence[Callable[[], Made]]) -> list[Made]:
        """What the pieces give, launched one after another."""
        found = []
        # The block brings back what was current before; between streams of one device a switch is enough.
        with torch.cuda.stream(self._streams[0]):
            for number, piece in enumerate(pieces):
                torch.cuda.set_stream(self._streams[number % len(self._streams)])
                found.append(piece())
        return found

    @contextmanager
    def _share(self, number: int) -> Iterator[None]:
        """The place of all pieces that a thread of its own launches: they have the stream of that number."""
        with torch.cuda.stream(self._streams[number]):
            make_context_current(self._streams[number].device)
            yield


def launched_apart(
    pieces: Sequence[Callable[[], Made]], threads: int, share: Callable[[int], AbstractContextManager[object]]
) -> list[Made]:
    """What the pieces give, in their order; a thread has every so many of them, within what `share` gives for its
    number.
    """
    recorded = torch.is_grad_enabled()

    def some(first: int) -> list[Made]:
        with torch.set_grad_enabled(recorded), share(first):
            return [piece() for piece in pieces[first::threads]]

    shares = [_thread(first).submit(some, first) for first in range(threads)]
    # All of them end before an error is raised: what they were given must not be used meanwhile.
    errors = [share.exception() for share in shares]
    for error in errors:
        if error is not None:
            raise error
    found = [share.result() for share in shares]
    return [found[number % threads][number // threads] for number in range(len(pieces))]


@cache
def _thread(number: int) -> ThreadPoolExecutor:
    """One thread for each stream, since libraries keep memory for every pair of them; and kept, since what they set up
    for a thread costs more than a piece of work.
    """
    return ThreadPoolExecutor(1, thread_name_prefix=f"side stream {number}")
