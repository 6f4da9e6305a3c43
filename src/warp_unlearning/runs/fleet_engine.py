"""Jobs in one process that take turns, a step each: for work that is done elsewhere, such as on a GPU, while the
process only hands it out.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import sleep
from typing import Protocol, cast

from ..errors import InputError
from .engine import Outcome
from .events import Event, Watch
from .job import Job, SteppedWork, Work
from .job_attempt import Attempt, attempt_in_steps
from .job_schedule import Schedule
from .store import Store

_NOTHING_TO_DO = 0.05


class Lane(Protocol):
    """Where the steps of one job after another are taken, such as a stream of a GPU."""

    def turn(self) -> AbstractContextManager[object]:
        """The context of one step."""


@dataclass(frozen=True)
class FleetEngine:
    """So many jobs side by side, each in a lane that `make_lane` gives.

    The work must have a method `steps`, which is called as the work is and does the job as a generator. A job that
    finds no room waits until another has ended, and from then on there is one lane less; one that is alone and finds
    none fails.
    """

    at_once: int
    make_lane: Callable[[], Lane]

    def __post_init__(self) -> None:
        if self.at_once < 1:
            raise InputError(f"{self.at_once} jobs at once; give 1 or more")

    def run(
        self, jobs: Sequence[Job], *, work: Work, store: Store, watch: Watch, until: float | None = None
    ) -> Outcome:
        """Put the result of every job in `store`."""
        if not hasattr(work, "steps"):
            raise InputError("this work cannot be done step by step; use another engine")
        store.sweep()
        schedule = Schedule(jobs, store=store, watch=watch, retries=0, until=until)
        fleet = _Fleet(self, cast("SteppedWork", work.steps), store, watch)
        try:
            while not schedule.over:
                fleet.start(schedule)
                fleet.advance(schedule)
        finally:
            fleet.close()
        return schedule.outcome()


@dataclass(eq=False)
class _Running:
    job: Job
    lane: Lane
    steps: Generator[object, None, Attempt]


class _Fleet:
    def __init__(self, engine: FleetEngine, work: SteppedWork, store: Store, watch: Watch) -> None:
        self._work, self._store, self._watch = work, store, watch
        self._free = [engine.make_lane() for _ in range(engine.at_once)]
        self._running: list[_Running] = []

    def start(self, schedule: Schedule) -> None:
        """Give every free lane a job that can start."""
        while self._free and (job := schedule.take()) is not None:
            steps = attempt_in_steps(job, work=self._work, store=self._store, began=self._told(job))
            self._running.append(_Running(job, self._free.pop(), steps))
        if not self._running and not schedule.over:
            sleep(schedule.pause() or _NOTHING_TO_DO)

    def advance(self, schedule: Schedule) -> None:
        """One step of every job."""
        for running in list(self._running):
            with running.lane.turn():
                try:
                    next(running.steps)
                    continue
                except StopIteration as end:
                    ended: Attempt = end.value
            self._running.remove(running)
            if ended.end == "crowded" and self._running:
                # The lane is not given back.
                schedule.put_back(running.job)
            else:
                self._free.append(running.lane)
                schedule.settle(running.job, ended)

    def close(self) -> None:
        """End what runs; claims are let go of."""
        for running in self._running:
            running.steps.close()
        self._running.clear()

    def _told(self, job: Job) -> Callable[[], None]:
        return lambda: self._watch(Event("started", job.key))
