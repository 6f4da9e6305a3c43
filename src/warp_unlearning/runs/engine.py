"""What an engine is: it runs the jobs of a run, and says what became of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..errors import WarpError
from .events import Watch
from .jobs import Job, Work
from .keys import Key
from .store import Store


class EngineError(WarpError):
    """An engine that cannot work: its workers do not start, or its cluster cannot be reached."""


@dataclass(frozen=True)
class Outcome:
    """What became of each job; every job is in exactly one of the five.

    finished: done in this run; skipped: its result was in the store, or another process put it there; failed: with the
    reason; blocked: it needs a job that failed; left: the time was up before it could be begun.
    """

    finished: tuple[Key, ...]
    skipped: tuple[Key, ...]
    failed: Mapping[Key, str]
    blocked: tuple[Key, ...]
    left: tuple[Key, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every result is in the store."""
        return not self.failed and not self.blocked and not self.left


class Engine(Protocol):
    """Runs jobs in order of need: on this machine, or on many."""

    def run(
        self, jobs: Sequence[Job], *, work: Work, store: Store, watch: Watch, until: float | None = None
    ) -> Outcome:
        """Put the result of every job in `store`, and tell `watch` as it goes, in the process and thread of the caller.
        After `until`, a time of the monotonic clock, no job is begun.

        A finished job is one whose key is in the store, so a run that was stopped goes on where it was. A job that
        raises fails, and those that need it are blocked; the others are done. A store that cannot be written ends the
        run with a `StoreError`.
        """
        ...
