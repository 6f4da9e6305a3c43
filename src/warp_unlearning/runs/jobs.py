"""A job: the key of its result, the keys of the results it needs, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
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


Steps = Generator[object, None, Mapping[str, bytes]]
"""A job done step by step, so that several can take turns in one process; it returns the files of the result."""

Work = Callable[[Job, Store], Steps]
"""Does a job: reads what the job needs from the store and returns the files of its result.

A function of a module, or an instance of a class of a module, so that it can be pickled to another process. It may be
called more than once for a job, in several processes, and returns the same bytes each time.
"""


def finished(steps: Generator[object, None, Result]) -> Result:
    """What `steps` returns, all of them taken one after another."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Result = end.value
            return found


def graph(jobs: Sequence[Job]) -> tuple[Job, ...]:
    """The jobs, each once, in the order in which those that can start are taken.

    One key twice with the same needs is one job; with other needs, or in a circle, an error.
    """
    unique: dict[Key, Job] = {}
    for job in jobs:
        before = unique.setdefault(job.key, job)
        if set(before.needs) != set(job.needs):
            raise InputError(f"the job {job.key} is given twice, with different needs; give it once")
    dependants: dict[Key, list[Key]] = {key: [] for key in unique}
    unmet = dict.fromkeys(unique, 0)
    for job in unique.values():
        for need in {*job.needs} & unique.keys():
            dependants[need].append(job.key)
            unmet[job.key] += 1
    ready = [key for key, count in unmet.items() if not count]
    for key in ready:
        for other in dependants[key]:
            unmet[other] -= 1
            if not unmet[other]:
                ready.append(other)
    if len(ready) < len(unique):
        circle = [str(key) for key, count in unmet.items() if count]
        raise InputError(f"jobs need each other in a circle, or hang on one: {', '.join(circle[:4])}; break it")
    chain: dict[Key, float] = {}
    for key in reversed(ready):
        chain[key] = unique[key].cost + max((chain[other] for other in dependants[key]), default=0.0)
    return tuple(sorted(unique.values(), key=lambda job: (job.order, -chain[job.key])))
