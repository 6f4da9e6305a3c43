"""Many trainings side by side on one device, for runs of many models; the steps of one are in `training.training`."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from ..errors import InputError

Result = TypeVar("Result")
_STEPS_AHEAD = 32
_BLOCKING = 4  # CU_CTX_SCHED_BLOCKING_SYNC


class Lane:
    """A stream of its own on a GPU, so that work in different lanes may run at the same time; elsewhere no effect.

    The host runs at most 32 steps ahead of the GPU, so that no lane's queue grows long while it waits for another.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._queued: deque[torch.cuda.Event] = deque()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Run one step on the lane's stream, within the block."""
        if self._stream is None:
            yield
            return
        if len(self._queued) == _STEPS_AHEAD:
            self._queued.popleft().synchronize()
        with torch.cuda.stream(self._stream):
            yield
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        self._queued.append(event)

    def rest(self) -> None:
        """Return cached memory to the device, for other processes, while the lane has no work."""
        if self._stream is not None:
            torch.cuda.empty_cache()


def side_by_side(
    makers: Iterable[Callable[[], Generator[object, None, Result]]], *, at_once: int, device: torch.device
) -> Iterator[tuple[int, Result]]:
    """Run the generators that `makers` make, `at_once` of them at a time, each in a lane of its own.

    Yields the number of each and what it returned, in the order in which they end. An error ends all.
    """
    if at_once < 1:
        raise InputError(f"{at_once} at once; give 1 or more")
    waiting = deque(enumerate(makers))
    free = [Lane(device) for _ in range(at_once)]
    running: list[tuple[int, Generator[object, None, Result], Lane]] = []
    while waiting or running:
        while waiting and free:
            number, make = waiting.popleft()
            lane = free.pop()
            with lane.turn():
                running.append((number, make(), lane))
        for item in list(running):
            number, steps, lane = item
            try:
                with lane.turn():
                    next(steps)
            except StopIteration as end:
                running.remove(item)
                free.append(lane)
                yield number, end.value


def sleep_while_waiting(device: int) -> bool:
    """Let threads of this process sleep while they wait for the GPU of that number; returns whether the driver agreed.

    By default they poll, which is a little faster and keeps one core busy for each. Call it before the GPU is used.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        handle = ctypes.c_int()
        return bool(
            driver.cuInit(0) == 0
            and driver.cuDeviceGet(ctypes.byref(handle), device) == 0
            and driver.cuDevicePrimaryCtxSetFlags_v2(handle, _BLOCKING) == 0
        )
    except (OSError, AttributeError):
        return False
