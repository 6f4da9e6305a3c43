"""Streams of a GPU that belong to another one, for work beside what that is given.

Libraries keep memory for every stream, which graphs that were captured on it go on using, wherever they run. So no two
owners share a stream: torch has 32 of high priority and hands them out in turn, and nothing else asks for them.
"""

from __future__ import annotations

import torch

_PRIORITY, _MOST_OWNERS = -1, 6
# Of each owner, the last of which is for what is begun ahead.
_EACH = 5
_OF: dict[tuple[torch.device, int], list[torch.cuda.Stream]] = {}


def sides_of(current: torch.cuda.Stream) -> list[torch.cuda.Stream]:
    """Four streams for pieces of one piece of work; there are such for six owners on a device, none for a seventh."""
    return _streams_of(current)[: _EACH - 1]


def ahead_of(current: torch.cuda.Stream) -> torch.cuda.Stream | None:
    """A fifth for work that is begun before it is needed, or none."""
    streams = _streams_of(current)
    return streams[-1] if streams else None


def _streams_of(current: torch.cuda.Stream) -> list[torch.cuda.Stream]:
    key = current.device, current.cuda_stream
    if key not in _OF:
        owners = sum(device == current.device for device, _ in _OF)
        count = _EACH if owners < _MOST_OWNERS else 0
        _OF[key] = [torch.cuda.Stream(current.device, priority=_PRIORITY) for _ in range(count)]  # type: ignore[no-untyped-call]
    return _OF[key]
