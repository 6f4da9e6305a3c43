"""Jobs that take turns in lanes of one process, and what becomes of those that find no room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from math import inf
from time import monotonic, sleep
from typing import Protocol

from .engine import EngineError
from .events import Event, Watch
from .job_attempt import Attempt, attempt_in_steps
from .jobs import Job, SteppedWork
from .resting_lanes import RestingLanes
from .store import Store

_GO_ON = "What is finished is kept: start again"
_NOTHING_TO_DO = 0.05
_REST_AFTER = 1.0
_PAUSES = (15.0, 30.0, 60.0)


class Lane(Protocol):
    """Where the steps of one job after another are taken, such as a stream of a GPU."""

    def turn(self) -> AbstractContextManager[object]:
        """The context of one step."""

    def rest(self) -> None:
        """Give back what is kept for later steps: none will be taken for a while."""


class Jobs(Protocol):
    """Where jobs come from, and who is told how they end."""

    @property
    def over(self) -> bool:
        """Whether nothing is left to do."""

    @property
    def time_left(self) -> float:
        """Seconds in which jobs may still be begun."""

    def take(self) -> Job | None:
        """The next job; None where none can start at this moment."""

    def pause(self) -> float | None:
        """Seconds until there may be one; None where nobody knows."""

    def put_back(self, job: Job) -> None:
        """A job that was taken is to be taken again."""

    def settle(self, job: Job, attempt: Attempt) -> None:
        """Take note of how an attempt ended."""


@dataclass(eq=False)
class _Running:
    job: Job
    lane: Lane
    steps: Generator[object, None, Attempt]

    def step(self) -> Attempt | None:
        """Take a step; how the job ended, if it did."""
        with ExitStack() as turn:
            with _of_the_lane():
                turn.enter_context(self.lane.turn())
            ended = self._next()
            with _of_the_lane():
                turn.close()
        return ended

    def _next(self) -> Attempt | None:
        try:
            next(self.steps)
        except StopIteration as end:
            ended: Attempt = end.value
            return ended
        return None


@contextmanager
def _of_the_lane() -> Iterator[None]:
    """What jobs raise is theirs; what a lane raises ends the fleet, since its device has failed."""
    try:
        yield
    except Exception as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise EngineError(f"a lane failed, and this process can do no more: {first}. {_GO_ON}") from error


class Fleet:
    """So many lanes, each with a job."""

    def __init__(
        self, lanes: int, make_lane: Callable[[], Lane], work: SteppedWork, store: Store, watch: Watch
    ) -> None:
        self._work, self._store, self._watch = work, store, watch
        self._lanes = [make_lane() for _ in range(lanes)]
        self._free = list(self._lanes)
        self._running: list[_Running] = []
        self._resting: RestingLanes[Lane] = RestingLanes()
        self._pauses: Counter[str] = Counter()
        self._paused_until = 0.0
        self._idle_since, self._rested = inf, False

    def carry_out(self, jobs: Jobs) -> None:
        """Do jobs until there are none left. An interrupt ends all at once, and claims are let go of. So does a job
        that finds this process unfit, with an `EngineError`.
        """
        try:
            while not jobs.over:
                self._start(jobs)
                self._advance(jobs)
        finally:
            self._close()

    def _start(self, jobs: Jobs) -> None:
        """Give every free lane a job that can start; where none runs, wait until one may."""
        now = monotonic()
        if (lane := self._resting.back(now=now)) is not None:
            self._free.append(lane)
        while self._free and now >= self._paused_until and (job := jobs.take()) is not None:
            steps = attempt_in_steps(job, work=self._work, store=self._store, began=self._told(job))
            self._running.append(_Running(job, self._free.pop(), steps))
        self._rest_if_idle(now)
        if not self._running and not jobs.over:
            wait = max(0.0, self._paused_until - now) or jobs.pause() or _NOTHING_TO_DO
            sleep(min(wait, jobs.time_left))

    def _rest_if_idle(self, now: float) -> None:
        """Let all lanes rest, once, where nothing runs for a while: other processes may need what they keep."""
        if self._running:
            self._idle_since, self._rested = inf, False
            return
        self._idle_since = min(self._idle_since, now)
        if not self._rested and (now < self._paused_until or now - self._idle_since >= _REST_AFTER):
            self._rested = True
            with _of_the_lane():
                for lane in self._lanes:
                    lane.rest()

    def _advance(self, jobs: Jobs) -> None:
        """One step of every job."""
        for running in list(self._running):
            if (ended := running.step()) is not None:
                self._end(running, ended, jobs)

    def _close(self) -> None:
        """End what runs; claims are let go of."""
        for running in self._running:
            # On a device that failed jobs cannot be put away in good order, and each has a claim to let go of.
            with suppress(RuntimeError):
                running.steps.close()
        self._running.clear()

    def _end(self, running: _Running, ended: Attempt, jobs: Jobs) -> None:
        self._running.remove(running)
        if ended.end == "unfit":
            raise EngineError(f"{ended.reason}. {_GO_ON}")
        if ended.end == "crowded":
            self._turn_away(running, ended, jobs)
        else:
            self._leave(running, ended, jobs)

    def _leave(self, running: _Running, ended: Attempt, jobs: Jobs) -> None:
        self._free.append(running.lane)
        if ended.end == "finished":
            self._resting.ended_well(running.lane)
            del self._pauses[running.job.key.kind]
        jobs.settle(running.job, ended)

    def _turn_away(self, running: _Running, ended: Attempt, jobs: Jobs) -> None:
        now, alone, kind = monotonic(), not self._running, running.job.key.kind
        self._resting.turned_away(self._free if alone else [*self._free, running.lane], now=now)
        self._free = [running.lane] if alone else []
        if alone and self._pauses[kind] == len(_PAUSES):
            self._pauses[kind] -= 1
            jobs.settle(running.job, ended)
            return
        if alone:
            self._paused_until = now + _PAUSES[self._pauses[kind]]
            self._pauses[kind] += 1
        self._watch(Event("retried", running.job.key, reason=ended.reason))
        jobs.put_back(running.job)

    def _told(self, job: Job) -> Callable[[], None]:
        return lambda: self._watch(Event("started", job.key))
