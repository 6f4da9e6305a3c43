"""How far a run of jobs is, read from the store: bars with the time left on a terminal, lines elsewhere, or JSON.

What other processes and machines do on the same store counts too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import time
from types import TracebackType
from typing import Any, Literal

from .drain import Outcome, blocked_by
from .entry import Fault
from .jobs import Job
from .keys import Key
from .store import Failure, Missing, Store

# A line at every so many hundredths of a stage.
_SHARE = 10


@dataclass(frozen=True)
class Event:
    """How one job ended.

    finished: its result is in the store, after `seconds` of work; found: it was there before; failed: for the reason
    given, with the traceback where there is one; blocked: it needs a job that failed. `at` is in seconds since 1970.
    """

    what: Literal["finished", "found", "failed", "blocked"]
    key: Key
    at: float
    seconds: float | None = None
    reason: str = ""
    traceback: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain data, without what is empty."""
        rest = {"seconds": self.seconds, "reason": self.reason, "traceback": self.traceback}
        said = {name: value for name, value in rest.items() if value not in (None, "")}
        return {"what": self.what, "kind": self.key.kind, "key": self.key.digest, "at": self.at} | said


@dataclass
class Stage:
    """The jobs of one kind; `seconds` are those of work of `timed` of them, over all processes."""

    name: str
    jobs: int = 0
    done: int = 0
    failed: int = 0
    timed: int = 0
    seconds: float = 0.0

    def note(self, seconds: float | None) -> None:
        """A job of it is done."""
        self.done += 1
        if seconds is not None:
            self.timed += 1
            self.seconds += seconds

    def seconds_left(self, workers: int) -> float | None:
        """What the rest takes on so many processes, going by what was done; None before anything was."""
        left = self.jobs - self.done - self.failed
        if not left:
            return 0.0
        return left * self.seconds / self.timed / workers if self.timed else None


def stages_of(jobs: Sequence[Job], store: Store, outcome: Outcome, *, found: bool = False) -> list[dict[str, Any]]:
    """How the jobs of each kind ended, and the seconds of those that were done; with `found`, of those found too."""
    stages = _stages(jobs)
    for key in outcome.done:
        stages[key.kind].note(_seconds(store, key))
    for key in outcome.found:
        stages[key.kind].note(_seconds(store, key) if found else None)
    for key in (*outcome.failed, *outcome.blocked):
        stages[key.kind].failed += 1
    return [{n: getattr(stage, n) for n in ("name", "jobs", "done", "failed", "seconds")} for stage in stages.values()]


def planned_text(jobs: Sequence[Job], store: Store) -> str:
    """What is to be done, by stages, and how much of it is there already."""
    there = set(store.digests())
    stages = ", ".join(f"{stage.jobs} {stage.name}" for stage in _stages(jobs).values())
    return f"planned: {stages}; {sum(job.key.digest in there for job in jobs)} are there already"


def in_words(style: str) -> bool:
    """Whether more is said than events, as it suits a reader."""
    return style not in ("none", "json")


class Progress:
    """Watches a run; use it as a context, so that the terminal is left in order. Every event goes to `tell` too."""

    def __init__(
        self,
        jobs: Sequence[Job],
        store: Store,
        style: str = "auto",
        *,
        workers: int = 1,
        tell: Callable[[Event], object] | None = None,
    ) -> None:
        self._jobs = {job.key.digest: job for job in jobs}
        self._store, self._workers, self._tell = store, workers, tell
        self._style = ("bars" if sys.stderr.isatty() else "lines") if style == "auto" else style
        self._stages = _stages(jobs)
        self._known: set[str] | None = None
        self._ended: dict[str, bool] = {}
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}
        self._shown: dict[str, int] = {}

    def __enter__(self) -> Progress:
        if self._style == "bars":
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
            from rich.progress import Progress as Bars

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[left]}"),
            )
            self._bars = Bars(*columns, console=Console(stderr=True), transient=True)
            for stage in self._stages.values():
                self._tasks[stage.name] = self._bars.add_task(stage.name, total=stage.jobs, left="")
            self._bars.start()
        self({})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, failures: Mapping[str, Failure]) -> None:
        """Look at the store, and show what has changed since the last look."""
        there = self._jobs.keys() & set(self._store.digests())
        for digest in [digest for digest, good in self._ended.items() if good and digest not in there]:
            # A damaged result was set aside, and is made again.
            self._stages[self._jobs[digest].key.kind].done -= 1
            del self._ended[digest]
        for event in self._events(there, failures):
            good = event.what in ("finished", "found")
            self._ended[event.key.digest] = good
            stage = self._stages[event.key.kind]
            if good:
                stage.note(event.seconds)
            else:
                stage.failed += 1
            if self._tell is not None:
                self._tell(event)
            if self._style == "json":
                sys.stderr.write(json.dumps(event.as_json()) + "\n")
            elif self._style != "none":
                self._show(event, stage)

    def say(self, text: str) -> None:
        """A line of text above the bars, or among the lines."""
        if self._bars is not None:
            self._bars.console.print(text, markup=False, highlight=False)
        else:
            sys.stderr.write(text + "\n")

    def _events(self, there: set[str], failures: Mapping[str, Failure]) -> Iterator[Event]:
        at, what = time(), "finished" if self._known is not None else "found"
        self._known = there
        failed = {d: f for d, f in failures.items() if d in self._jobs and d not in there}
        blocked = blocked_by(list(self._jobs.values()), failed.keys()) - there if failed else set()
        for digest, job in self._jobs.items():
            if digest in self._ended:
                continue
            if digest in there:
                yield Event(what, job.key, at, _seconds(self._store, job.key))  # type: ignore[arg-type]
            elif digest in failed:
                yield Event("failed", job.key, at, reason=failed[digest].reason, traceback=failed[digest].traceback)
            elif digest in blocked:
                yield Event("blocked", job.key, at, reason="something it needs failed")

    def _show(self, event: Event, stage: Stage) -> None:
        left = _duration(stage.seconds_left(self._workers))
        if self._bars is not None:
            self._bars.update(self._tasks[stage.name], completed=stage.done + stage.failed, left=left)
        if event.what == "failed":
            self.say(f"failed: {event.key}: {event.reason}")
        ended = stage.done + stage.failed
        step = max(1, stage.jobs // _SHARE)
        if self._bars is None and (ended % step == 0 or ended == stage.jobs) and self._shown.get(stage.name) != ended:
            self._shown[stage.name] = ended
            self.say(f"{stage.name}: {ended} of {stage.jobs}{f', {stage.failed} failed' if stage.failed else ''}{left}")


def _stages(jobs: Sequence[Job]) -> dict[str, Stage]:
    stages: dict[str, Stage] = {}
    for job in jobs:
        stages.setdefault(job.key.kind, Stage(job.key.kind)).jobs += 1
    return stages


def _seconds(store: Store, key: Key) -> float | None:
    try:
        return store.look(key.digest).seconds
    except (Fault, Missing):
        return None


def _duration(seconds: float | None) -> str:
    """Text for the time left; nothing where it is unknown or none is left.

    >>> _duration(75.0), _duration(None)
    (', 1 min 15 s left', '')
    """
    if not seconds:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    return f", {minutes} min {rest} s left" if minutes else f", {rest} s left"
