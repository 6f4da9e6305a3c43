"""Which job comes next, and what becomes of the others when one ends. Engines differ only in where work is done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf
from time import monotonic

from ..errors import InputError
from .engine import Outcome
from .events import Event, Watch
from .job_attempt import Attempt
from .job_graph import job_graph
from .jobs import Job
from .keys import Key
from .store import Store, StoreError

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
_MOST_LOSSES = 3


class Schedule:
    """The state of a run. An engine takes a job, has it attempted somewhere, and settles it with how that ended.

    A job is ready when all it needs is in the store. Of those ready, the one of the lowest order comes first, and of
    these the one with the longest chain of cost behind it. No job is begun after `until`, by the monotonic clock. One
    that another process is doing is asked about again after a pause, which doubles up to a second. One that found no
    room beside others is set aside, and has its turn alone when all others have come to an end.
    """

    def __init__(
        self, jobs: Sequence[Job], *, store: Store, watch: Watch, retries: int, until: float | None = None
    ) -> None:
        self._graph = job_graph(jobs)
        self._store = store
        self._watch = watch
        self._retries = retries
        self._until = until
        self._order = {key: i for i, key in enumerate(self._graph.jobs)}
        self._by_digest = {key.digest: key for key in self._graph.jobs}
        self._done: dict[Key, str] = {}
        self._failed: dict[Key, str] = {}
        self._blocked: dict[Key, None] = {}
        self._ready: list[tuple[int, float, int, Key]] = []
        self._busy: list[tuple[float, int, Key]] = []
        self._pauses: dict[Key, float] = {}
        self._aside: list[Key] = []
        self._running: set[Key] = set()
        self._deaths: Counter[Key] = Counter()
        self._losses: Counter[tuple[Key, Key]] = Counter()
        self._unusable = ""
        for need, job in self._graph.outside.items():
            if not store.has(need):
                raise InputError(f"the job {job} needs {need}, which is neither a job of this run nor in {store.root}")
        there = [key for key in self._graph.jobs if store.has(key)]
        self._done.update(dict.fromkeys(there, "skipped"))
        self._unmet = {
            key: {need for need in job.needs if need in self._graph.jobs and need not in self._done}
            for key, job in self._graph.jobs.items()
        }
        for key in there:
            watch(Event("found", key))
        for key in self._graph.jobs:
            if key not in self._done and not self._unmet[key]:
                self._make_ready(key)

    @property
    def over(self) -> bool:
        """Whether nothing runs and nothing is left that could, or may."""
        waiting = self._ready or self._busy or self._aside
        return not self._running and (bool(self._unusable) or self._late or not waiting)

    @property
    def time_left(self) -> float:
        """Seconds in which jobs may still be begun."""
        return inf if self._until is None else max(0.0, self._until - monotonic())

    @property
    def _late(self) -> bool:
        return not self.time_left

    @property
    def left(self) -> int:
        """How many jobs have not come to an end."""
        return len(self._graph.jobs) - len(self._done) - len(self._failed) - len(self._blocked)

    def take(self) -> Job | None:
        """The next job, which then runs until it is settled; None where none can start at this moment."""
        while self._busy and self._busy[0][0] <= monotonic():
            self._make_ready(heappop(self._busy)[2])
        if self._aside and not (self._ready or self._busy or self._running):
            self._make_ready(self._aside.pop(0))
        while self._ready and not self._unusable and not self._late:
            key = heappop(self._ready)[3]
            if self._ended(key):
                continue
            if self._store.has(key):
                self._complete(key, "skipped", Event("found", key))
                continue
            self._running.add(key)
            return self._graph.jobs[key]
        return None

    def pause(self) -> float | None:
        """Seconds until a job that another process was doing should be asked about; None where there is none."""
        return max(0.0, self._busy[0][0] - monotonic()) if self._busy else None

    def settle(self, job: Job, attempt: Attempt) -> None:
        """Take note of how an attempt at `job` ended."""
        key = job.key
        self._running.discard(key)
        if attempt.end == "finished":
            self._complete(key, "finished", Event("finished", key, seconds=attempt.seconds))
        elif attempt.end == "found":
            self._complete(key, "skipped", Event("found", key))
        elif attempt.end == "busy":
            pause = self._pauses.get(key, _FIRST_PAUSE)
            self._pauses[key] = min(2 * pause, _LONGEST_PAUSE)
            heappush(self._busy, (monotonic() + pause, self._order[key], key))
        elif attempt.end == "crowded" and self._running:
            self._watch(Event("retried", key, reason=attempt.reason))
            self._aside.append(key)
        elif attempt.end in ("failed", "crowded", "unfit"):
            self._fail(key, attempt.reason, attempt.traceback)
        elif attempt.end == "lost":
            self._redo(job, attempt)
        else:
            self._unusable = attempt.reason
            self._make_ready(key)

    def died(self, job: Job, reason: str) -> None:
        """The process that did `job` is gone: the job is done again, up to the number of retries."""
        self._running.discard(job.key)
        self._deaths[job.key] += 1
        if self._deaths[job.key] > self._retries:
            times = self._deaths[job.key]
            self._fail(job.key, f"{reason}; it was tried {times} time{'s' if times > 1 else ''}", "")
        else:
            self._watch(Event("retried", job.key, reason=reason))
            self._make_ready(job.key)

    def put_back(self, job: Job) -> None:
        """`job` was taken and came to no end: it is to be taken again."""
        self._running.discard(job.key)
        self._make_ready(job.key)

    def outcome(self) -> Outcome:
        """What became of every job; raises `StoreError` where the store could not be written."""
        if self._unusable:
            raise StoreError(self._unusable)
        return Outcome(
            finished=tuple(key for key in self._graph.jobs if self._done.get(key) == "finished"),
            skipped=tuple(key for key in self._graph.jobs if self._done.get(key) == "skipped"),
            failed=dict(self._failed),
            blocked=tuple(key for key in self._graph.jobs if key in self._blocked),
            left=tuple(key for key in self._graph.jobs if not self._ended(key)),
        )

    def _make_ready(self, key: Key) -> None:
        heappush(self._ready, (self._graph.jobs[key].order, -self._graph.chain[key], self._order[key], key))

    def _complete(self, key: Key, how: str, event: Event) -> None:
        self._done[key] = how
        self._watch(event)
        for other in self._graph.dependants[key]:
            unmet = self._unmet[other]
            if key in unmet:
                unmet.remove(key)
                if not unmet:
                    self._make_ready(other)

    def _ended(self, key: Key) -> bool:
        return key in self._done or key in self._failed or key in self._blocked

    def _fail(self, key: Key, reason: str, traceback: str) -> None:
        self._failed[key] = reason
        self._watch(Event("failed", key, reason=reason, traceback=traceback))
        self._block_dependants(key, f"it needs {key}, which failed")

    def _block_dependants(self, key: Key, reason: str) -> None:
        for other in self._graph.dependants[key]:
            if not self._ended(other) and other not in self._running:
                self._block(other, reason)

    def _block(self, key: Key, reason: str) -> None:
        self._blocked[key] = None
        self._watch(Event("blocked", key, reason=reason))
        self._block_dependants(key, reason)

    def _redo(self, job: Job, attempt: Attempt) -> None:
        lost = self._by_digest.get(attempt.lost)
        if lost is None or lost not in job.needs:
            self._fail(job.key, f"{attempt.reason} (it is no job that this one needs in this run)", "")
        elif lost in self._failed or lost in self._blocked:
            self._block(job.key, f"it needs {lost}, which failed")
        elif self._losses[job.key, lost] == _MOST_LOSSES:
            self._fail(job.key, f"{attempt.reason} (for the {_MOST_LOSSES + 1}th time; check the disk)", "")
        else:
            self._losses[job.key, lost] += 1
            if lost in self._done and self._store.has(lost):
                # Another job that needs it has had it done again meanwhile.
                self._make_ready(job.key)
                return
            self._unmet[job.key].add(lost)
            if self._done.pop(lost, None):
                self._watch(Event("redone", lost, reason=attempt.reason))
                self._make_ready(lost)
