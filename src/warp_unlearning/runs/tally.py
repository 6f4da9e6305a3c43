"""How far a run of jobs is: by kind, how many are done, what they took, and how long the rest may take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .events import Event
from .jobs import Job

ENDED = ("finished", "found", "failed", "blocked")


@dataclass
class Stage:
    """The jobs of one kind."""

    name: str
    jobs: int = 0
    done: int = 0
    failed: int = 0
    worked: int = 0
    seconds: float = 0.0

    @property
    def left(self) -> int:
        """Jobs that have not ended."""
        return self.jobs - self.done - self.failed

    def as_json(self) -> dict[str, Any]:
        """Plain data; `seconds` are those of work, over all processes."""
        return {n: getattr(self, n) for n in ("name", "jobs", "done", "failed", "seconds")}


class Tally:
    """Counts the events of a run. Seconds of results that were there already are taken from `known`, by digest."""

    def __init__(self, jobs: Sequence[Job], *, workers: int = 1, known: Mapping[str, float] | None = None) -> None:
        self.stages: dict[str, Stage] = {}
        self._kinds = {job.key.digest: job.key.kind for job in jobs}
        self._ended: dict[str, bool] = {}
        self._workers, self._known = max(1, workers), known or {}
        for job in jobs:
            self.stages.setdefault(job.key.kind, Stage(job.key.kind)).jobs += 1

    def note(self, event: Event) -> Stage:
        """Count an event; returns the stage it belongs to."""
        digest = event.key.digest
        stage = self.stages[self._kinds[digest]]
        if event.what == "redone" and self._ended.pop(digest, False):
            stage.done -= 1
        if event.what in ENDED and digest not in self._ended:
            good = event.what in ("finished", "found")
            self._ended[digest] = good
            stage.done += good
            stage.failed += not good
            seconds = self._known.get(digest) if event.what == "found" else event.seconds
            if good and seconds is not None:
                stage.worked += 1
                stage.seconds += seconds
        return stage

    def seconds_left(self, stage: Stage) -> float | None:
        """What the rest of a stage takes on all processes, going by what was done; None before anything was."""
        if not stage.left:
            return 0.0
        return stage.left * stage.seconds / stage.worked / self._workers if stage.worked else None
