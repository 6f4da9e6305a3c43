"""What a worker process with lanes does: it takes jobs from a pipe, as many at once as it has lanes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

from ..errors import InputError
from .engine import EngineError
from .events import Event
from .fleet import Fleet, Lane
from .job_attempt import Attempt
from .jobs import Job, Work, stepped
from .store import Store


@dataclass(frozen=True)
class Lanes:
    """So many lanes, each made by `make` in the process that has them; it must be picklable."""

    count: int
    make: Callable[[], Lane]

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InputError(f"{self.count} lanes in a process; give 1 or more")


def fleet_of(pipe: Connection, work: Work, store: Store, lanes: Lanes) -> Fleet:
    """A fleet that tells what happens to its jobs through `pipe`."""

    def tell(event: Event) -> None:
        said: tuple[Any, ...] = (
            ("began", event.key.digest, event.at)
            if event.what == "started"
            else (event.what, event.key.digest, event.reason)
        )
        pipe.send(said)

    return Fleet(lanes.count, lanes.make, stepped(work), store, tell)


def serve_in_lanes(pipe: Connection, fleet: Fleet) -> None:
    """Do the jobs that come through `pipe`, until it is closed or this process is no longer fit for them."""
    try:
        fleet.carry_out(PipedJobs(pipe))
    except EngineError as error:
        pipe.send(("unfit", str(error)))


class PipedJobs:
    """Jobs that come through a pipe, each with the seconds in which it may be begun, and go back through it with how
    they ended, or as they came when the time is up. They are over when it is closed.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._waiting: deque[Job] = deque()
        self._closed = False
        self._until = inf

    @property
    def over(self) -> bool:
        """Whether the other end of the pipe is closed."""
        return self._closed

    @property
    def time_left(self) -> float:
        """Seconds in which jobs may still be begun."""
        return max(0.0, self._until - monotonic())

    def take(self) -> Job | None:
        """The next job that has come."""
        try:
            while not self._closed and self._pipe.poll():
                job, seconds = self._pipe.recv()
                self._waiting.append(job)
                self._until = monotonic() + seconds
        except (EOFError, OSError):
            self._closed = True
        if not self._waiting or self._closed:
            return None
        if self.time_left:
            return self._waiting.popleft()
        while self._waiting:
            self._pipe.send(("returned", self._waiting.popleft().key.digest))
        return None

    def pause(self) -> float | None:
        """Nobody knows."""
        return None

    def put_back(self, job: Job) -> None:
        """It is the next."""
        self._waiting.appendleft(job)

    def settle(self, job: Job, attempt: Attempt) -> None:
        """Tell the other end."""
        self._pipe.send(("ended", job.key.digest, attempt))
