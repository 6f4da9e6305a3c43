"""Jobs in one process that take turns, a step each: for work that is done elsewhere, such as on a GPU, while the
process only hands it out. One that waits in the middle of a step leaves its turn to the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import Event as Flag
from time import monotonic, sleep
from typing import Protocol, cast

from ..errors import InputError
from .engine import Outcome
from .events import Event, Watch
from .job import Job, SteppedWork, Work
from .job_attempt import Attempt, attempt_in_steps
from .job_schedule import Schedule
from .resting_lanes import RestingLanes
from .store import Store
from .turn_thread import TurnThread

_NOTHING_TO_DO = 0.05
_PAUSES = (15.0, 30.0, 60.0)


class Lane(Protocol):
    """Where the steps of one job after another are taken, such as a stream of a GPU."""

    def turn(self) -> AbstractContextManager[object]:
        """The context of one step."""


@dataclass(frozen=True)
class FleetEngine:
    """So many jobs side by side, each in a lane that `make_lane` gives.

    The work must have a method `steps`, which is called as the work is and does the job as a generator. All steps of a
    job are taken in one thread, while no other works; in what the work marks as waiting (`waiting.idly`), others do.

    A job that finds no room is put back, for the next lane that another job leaves; its own lane rests, and the idle
    ones with it (`RestingLanes`). One that is alone in this process and finds none is tried again after 15, 30 and
    60 seconds, in which nothing else is begun, and then fails: other processes may give memory back, but a device that
    is too small stays so. Jobs of the same kind are then tried again only once, after 60 seconds, until one ends well.
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


@dataclass(frozen=True, eq=False)
class _Seat:
    """A lane and the thread that steps are taken in there: libraries keep memory for every pair of the two."""

    lane: Lane
    thread: TurnThread[Attempt | None]


@dataclass(eq=False)
class _Running:
    job: Job
    seat: _Seat
    steps: Generator[object, None, Attempt]

    def step(self) -> Attempt | None:
        """Take a step; how the job ended, if it did."""
        with self.seat.lane.turn():
            try:
                next(self.steps)
            except StopIteration as end:
                ended: Attempt = end.value
                return ended
        return None


class _Fleet:
    def __init__(self, engine: FleetEngine, work: SteppedWork, store: Store, watch: Watch) -> None:
        self._work, self._store, self._watch = work, store, watch
        self._roused = Flag()
        self._seats = [_Seat(engine.make_lane(), TurnThread(self._roused.set)) for _ in range(engine.at_once)]
        self._free = list(self._seats)
        self._running: list[_Running] = []
        self._resting: RestingLanes[_Seat] = RestingLanes()
        self._pauses: Counter[str] = Counter()
        self._paused_until = 0.0

    def start(self, schedule: Schedule) -> None:
        """Give every free lane a job that can start; where none runs, wait until one may."""
        now = monotonic()
        if (seat := self._resting.back(now=now)) is not None:
            self._free.append(seat)
        while self._free and now >= self._paused_until and (job := schedule.take()) is not None:
            steps = attempt_in_steps(job, work=self._work, store=self._store, began=self._told(job))
            self._running.append(_Running(job, self._free.pop(), steps))
        if not self._running and not schedule.over:
            wait = max(0.0, self._paused_until - now) or schedule.pause() or _NOTHING_TO_DO
            sleep(min(wait, schedule.time_left))

    def advance(self, schedule: Schedule) -> None:
        """One step of every job, but of those that wait."""
        self._roused.clear()
        for running in list(self._running):
            thread = running.seat.thread
            if thread.waits:
                continue
            if thread.free:
                thread.start(running.step)
            if thread.turn() and (ended := thread.result()) is not None:
                self._end(running, ended, schedule)
        if self._running and all(running.seat.thread.waits for running in self._running):
            self._roused.wait()

    def close(self) -> None:
        """End what runs, each after the step that it is in; claims are let go of."""
        for seat in self._seats:
            seat.thread.close()
        for running in self._running:
            running.steps.close()
        self._running.clear()

    def _end(self, running: _Running, ended: Attempt, schedule: Schedule) -> None:
        self._running.remove(running)
        if ended.end == "crowded":
            self._turn_away(running, ended, schedule)
        else:
            self._leave(running, ended, schedule)

    def _leave(self, running: _Running, ended: Attempt, schedule: Schedule) -> None:
        self._free.append(running.seat)
        if ended.end == "finished":
            self._resting.ended_well(running.seat)
            del self._pauses[running.job.key.kind]
        schedule.settle(running.job, ended)

    def _turn_away(self, running: _Running, ended: Attempt, schedule: Schedule) -> None:
        now, alone, kind = monotonic(), not self._running, running.job.key.kind
        self._resting.turned_away(self._free if alone else [*self._free, running.seat], now=now)
        self._free = [running.seat] if alone else []
        if alone and self._pauses[kind] == len(_PAUSES):
            self._pauses[kind] -= 1
            schedule.settle(running.job, ended)
            return
        if alone:
            self._paused_until = now + _PAUSES[self._pauses[kind]]
            self._pauses[kind] += 1
        self._watch(Event("retried", running.job.key, reason=ended.reason))
        schedule.put_back(running.job)

    def _told(self, job: Job) -> Callable[[], None]:
        return lambda: self._watch(Event("started", job.key))
