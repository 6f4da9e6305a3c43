"""What a worker process with lanes does: it takes jobs from a pipe, as many at once as it has lanes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from multiprocessing.connection import Connection
from typing import Any

from ..errors import InputError
from .events import Event
from .fleet import Fleet, Lane
from .job import Job, Work, stepped
from .job_attempt import Attempt
from .store import Store


@dataclass(frozen=True)
class Lanes:
    """So many lanes, each made by `make` in the process that has them; it must be picklable."""

    count: int
    make: Callable[[], Lane]

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InputError(f"{self.count} lanes in a process; give 1 or more")


def serve_in_lanes(pipe: Connection, work: Work, store: Store, lanes: Lanes) -> None:
    """Do the jobs that come through `pipe`, until it is closed."""

    def tell(event: Event) -> None:
        said: tuple[Any, ...] = (
            ("began", event.key.digest, event.at)
            if event.what == "started"
            else (event.what, event.key.digest, event.reason)
        )
        pipe.send(said)

    Fleet(lanes.count, lanes.make, stepped(work), store, tell).carry_out(PipedJobs(pipe))


class PipedJobs:
    """Jobs that come through a pipe, and go back through it with how they ended. They are over when it is closed."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._waiting: deque[Job] = deque()
        self._closed = False

    @property
    def over(self) -> bool:
        """Whether the other end of the pipe is closed."""
        return self._closed

    @property
    def time_left(self) -> float:
        """Whoever sends jobs minds the time."""
        return inf

    def take(self) -> Job | None:
        """The next job that has come."""
        try:
            while not self._closed and self._pipe.poll():
                self._waiting.append(self._pipe.recv())
        except (EOFError, OSError):
            self._closed = True
        return self._waiting.popleft() if self._waiting and not self._closed else None

    def pause(self) -> float | None:
        """Nobody knows."""
        return None

    def put_back(self, job: Job) -> None:
        """It is the next."""
        self._waiting.appendleft(job)

    def settle(self, job: Job, attempt: Attempt) -> None:
        """Tell the other end."""
        self._pipe.send(("ended", job.key.digest, attempt))
