"""A job: the key of its result, the keys of the results it needs, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TypeVar

from ..errors import InputError, WarpError
from .keys import Key
from .store import Store

Result = TypeVar("Result")


@dataclass(frozen=True)
class Job:
    """Plain data; what a kind of job does is known to the `Work` that an engine is given.

    `cost` is in any unit that is the same for all jobs of a run; of the jobs that can start, engines start those of the
    lowest `order` first, and of these the ones on which the longest chain of cost hangs.
    """

    key: Key
    needs: tuple[Key, ...] = ()
    cost: float = 1.0
    order: int = 0

    def __post_init__(self) -> None:
        if not (isfinite(self.cost) and self.cost >= 0):
            raise InputError(f"the job {self.key} has cost {self.cost}; give a number from 0 on")
        if self.key in self.needs:
            raise InputError(f"the job {self.key} needs its own result; remove that need")


class NoRoom(WarpError):
    """Raised by work that finds no room on its device beside what else runs there."""


class Unfit(WarpError):
    """Raised by work where its process can do no more of it, and another one could."""


Work = Callable[[Job, Store], Mapping[str, bytes]]
"""Does a job: reads what the job needs from the store and returns the files of its result.

A function of a module, or an instance of a class of a module, so that it can be pickled to another process. It may be
called more than once for a job, in several processes, and returns the same bytes each time.
"""

Steps = Generator[object, None, Mapping[str, bytes]]
"""A job done step by step, so that several can take turns in one process; it returns the files of the result."""

SteppedWork = Callable[[Job, Store], Steps]


def stepped(work: Work) -> SteppedWork:
    """The same work step by step, by its method `steps`."""
    steps = getattr(work, "steps", None)
    if steps is None:
        raise InputError("this work cannot be done step by step; use another engine")
    found: SteppedWork = steps
    return found


def finished(steps: Generator[object, None, Result]) -> Result:
    """What `steps` returns, all of them taken one after another."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Result = end.value
            return found
