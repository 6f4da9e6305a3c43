"""A lane of a device in which one training or unlearning after another is done, beside others in lanes of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..waiting import idly

_AHEAD = 32


class DeviceLane:
    """On a GPU a stream of its own: what is done in different lanes may run at the same time. Elsewhere nothing.

    The host runs at most so many steps ahead of the GPU, so that no lane's queue grows long while it waits for another.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._taken: deque[torch.cuda.Event] = deque()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The context of one step."""
        if self._stream is None:
            yield
            return
        if len(self._taken) == _AHEAD:
            with idly():
                self._taken.popleft().synchronize()
        with torch.cuda.stream(self._stream):
            yield
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        self._taken.append(event)

    def rest(self) -> None:
        """Give memory that is kept for later back to the device, for other processes."""
        if self._stream is not None:
            torch.cuda.empty_cache()
