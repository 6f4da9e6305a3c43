"""Independent pieces of work spread over a few streams of a GPU, none of which fills it.

Small pieces keep the host busier than the GPU: each stream has a thread of its own that launches what it is given, as
far as Python lets threads run at once. Lanes that take turns launch theirs one after another: the others have the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import torch

from ..waiting import takes_turns
from .gpu_library import load_gpu_library

Made = TypeVar("Made")
_STREAMS = 4
# Torch has 32 streams of high priority, hands them out in turn, and nothing else here asks for them.
_PRIORITY, _MOST_OWNERS = -1, 8
_OF: dict[tuple[torch.device, int], list[torch.cuda.Stream]] = {}


class SideStreams:
    """Pieces of one block, on a GPU each on one of a few streams beside the current one; elsewhere one after another.

    They begin after what the current stream has been given, and what it is given after the block comes after them all.
    Streams belong to the current one: what they allocate is used on no other but it, so that memory which is let go of
    is not handed on before the current stream is done with it. There are such streams for eight; a ninth has none.
    """

    def __init__(self, device: torch.device) -> None:
        self._streams = _beside(torch.cuda.current_stream(device)) if device.type == "cuda" else []

    def __enter__(self) -> SideStreams:
        """Begin."""
        for stream in self._streams:
            stream.wait_stream(torch.cuda.current_stream(stream.device))
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
        for stream in self._streams:
            torch.cuda.current_stream(stream.device).wait_stream(stream)

    def each(self, pieces: Sequence[Callable[[], Made]]) -> list[Made]:
        """What the pieces give, launched by several threads where that is good. They must not depend on each other, and
        lie on the device of the streams.
        """
        settings = torch.is_autocast_enabled("cuda") or torch.is_inference_mode_enabled()
        if not self._streams or takes_turns() or settings:
            return [self._one(number, piece) for number, piece in enumerate(pieces)]
        load_gpu_library(self._streams[0].device)
        return launched_apart(pieces, self._one, len(self._streams))

    def _one(self, number: int, piece: Callable[[], Made]) -> Made:
        with self.piece(number):
            return piece()


def launched_apart(
    pieces: Sequence[Callable[[], Made]], one: Callable[[int, Callable[[], Made]], Made], threads: int
) -> list[Made]:
    """What `one` makes of each number and piece, in that order; a thread has every so many of them."""
    recorded = torch.is_grad_enabled()

    def some(first: int) -> list[Made]:
        with torch.set_grad_enabled(recorded):
            return [one(number, pieces[number]) for number in range(first, len(pieces), threads)]

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


def _beside(current: torch.cuda.Stream) -> list[torch.cuda.Stream]:
    key = current.device, current.cuda_stream
    if key not in _OF:
        count = _STREAMS if len(_OF) < _MOST_OWNERS else 0
        _OF[key] = [torch.cuda.Stream(current.device, priority=_PRIORITY) for _ in range(count)]  # type: ignore[no-untyped-call]
    return _OF[key]
