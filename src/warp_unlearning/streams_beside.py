"""Streams of a GPU that belong to another one, for work beside what that is given.

Libraries keep memory for every stream, which graphs that were captured on it go on using, wherever they run. So no two
owners share a stream: torch has 32 of each priority and hands them out in turn, and nothing else asks for these two.
What is begun ahead is needed last, and gives way to pieces of work that somebody waits for.
"""

from __future__ import annotations

import torch

_PIECES, _AHEAD = -2, -1
_EACH, _MOST_OWNERS = 4, 8
# Where a device has no two priorities above the usual one, both kinds are among the same 32.
_MOST_OWNERS_OF_FEW = 6
_OF: dict[tuple[torch.device, int], list[torch.cuda.Stream]] = {}


def sides_of(current: torch.cuda.Stream) -> list[torch.cuda.Stream]:
    """Four streams for pieces of one piece of work; there are such for eight owners on a device, none for a ninth."""
    return _streams_of(current)[:_EACH]


def ahead_of(current: torch.cuda.Stream) -> torch.cuda.Stream | None:
    """A fifth for work that is begun before it is needed, or none."""
    streams = _streams_of(current)
    return streams[-1] if streams else None


def _streams_of(current: torch.cuda.Stream) -> list[torch.cuda.Stream]:
    key = current.device, current.cuda_stream
    if key not in _OF:
        owners = sum(device == current.device for device, _ in _OF)
        least, greatest = torch.cuda.Stream.priority_range()  # type: ignore[call-arg]
        most = _MOST_OWNERS if least - greatest >= -_PIECES else _MOST_OWNERS_OF_FEW
        priorities = [*[_PIECES] * _EACH, _AHEAD] if owners < most else []
        _OF[key] = [torch.cuda.Stream(current.device, priority=each) for each in priorities]  # type: ignore[no-untyped-call]
    return _OF[key]
