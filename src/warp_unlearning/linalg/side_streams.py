"""Independent pieces of work spread over a few streams of a GPU, none of which fills it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

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


def _beside(current: torch.cuda.Stream) -> list[torch.cuda.Stream]:
    key = current.device, current.cuda_stream
    if key not in _OF:
        count = _STREAMS if len(_OF) < _MOST_OWNERS else 0
        _OF[key] = [torch.cuda.Stream(current.device, priority=_PRIORITY) for _ in range(count)]  # type: ignore[no-untyped-call]
    return _OF[key]
