"""Several trainings or unlearnings side by side on one device, a step of each in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TypeVar

import torch

from ..errors import InputError
from .lane import DeviceLane

Result = TypeVar("Result")


def side_by_side(
    makers: Iterable[Callable[[], Generator[object, None, Result]]], *, at_once: int, device: torch.device
) -> Iterator[tuple[int, Result]]:
    """Run the generators that `makers` make, `at_once` of them at a time, each in a lane of its own: a stream of a GPU.

    Gives the number of each with what it returned, in the order in which they end. An error ends all.
    """
    if at_once < 1:
        raise InputError(f"{at_once} at once; give 1 or more")
    waiting = deque(enumerate(makers))
    free = [DeviceLane(device) for _ in range(at_once)]
    running: list[tuple[int, Generator[object, None, Result], DeviceLane]] = []
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
