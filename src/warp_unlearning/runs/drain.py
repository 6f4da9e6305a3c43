"""The engine: whoever has a plan drains it, job by job whose needs are in the store and whose claim it gets.

A second process, a lane of a GPU, a Ray task and a second machine are the same thing: each drains the whole plan by
itself, and what is done is decided by the store alone.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from math import inf
from time import monotonic, perf_counter, sleep, time
from typing import Protocol

from ..errors import InputError, WarpError
from .jobs import Job, NoRoom, Steps, Unfit, Work, graph
from .keys import Key
from .store import Claim, Failure, Missing, Store, StoreError

_FIRST_LOOK, _LONGEST_LOOK, _LIST_EVERY, _WATCH_EVERY = 0.05, 0.25, 1.0, 0.25
_MOST_LOSSES = 3
_NO_FILES = "the work returned {0!r} where the files of a result were wanted; return a mapping from names to bytes"
_GO_ON = "What is finished is kept: start again"
_PAUSES = (15.0, 30.0, 60.0)
_NARROW = 60.0
_REST_AFTER = 1.0


class EngineError(WarpError):
    """An engine that cannot work: its workers do not start, its device failed, or its cluster cannot be reached."""


@dataclass(frozen=True)
class Outcome:
    """What became of each job; every job is in exactly one of the five.

    done: in this run, here or elsewhere; found: its result was in the store before; failed: with the reason; blocked:
    it needs a job that failed; left: the time was up before it could be begun.
    """

    done: tuple[Key, ...]
    found: tuple[Key, ...]
    failed: Mapping[Key, str]
    blocked: tuple[Key, ...]
    left: tuple[Key, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every result is in the store."""
        return not self.failed and not self.blocked and not self.left


Watch = Callable[[Mapping[str, Failure]], object]
"""Called now and then while a run goes on, with what failed in it by digest; the rest is in the store."""


class Engine(Protocol):
    """Puts the result of every job in the store, wherever that is done."""

    def __call__(
        self, jobs: Sequence[Job], work: Work, store: Store, *, watch: Watch | None = None, until: float | None = None
    ) -> Outcome:
        """No job is begun after `until`, in seconds since 1970. A job that raises fails, and those that need it are
        blocked; the others are done. A store that cannot be written ends the run with a `StoreError`.
        """
        ...


class Lane(Protocol):
    """Where the steps of one job after another are taken, such as a stream of a GPU."""

    def turn(self) -> AbstractContextManager[object]:
        """The context of one step."""

    def rest(self) -> None:
        """Give back what is kept for later steps: none will be taken for a while."""


class PlainLane:
    """A lane without a device."""

    def turn(self) -> AbstractContextManager[object]:
        """Nothing."""
        return nullcontext()

    def rest(self) -> None:
        """Nothing."""


def outcome(jobs: Sequence[Job], store: Store, run: str, found: Collection[str] = ()) -> Outcome:
    """What became of each job in `run`; `found` are digests of those that were there before."""
    order, there, failures = graph(jobs), set(store.digests()), store.failures(run)
    failed = {job.key: failures[d].reason for job in order if (d := job.key.digest) in failures and d not in there}
    blocked = blocked_by(order, {key.digest for key in failed}) - there
    done = [job.key for job in order if job.key.digest in there]
    return Outcome(
        tuple(key for key in done if key.digest not in found),
        tuple(key for key in done if key.digest in found),
        failed,
        tuple(job.key for job in order if job.key.digest in blocked),
        tuple(j.key for j in order if j.key.digest not in there | blocked and j.key not in failed),
    )


def blocked_by(jobs: Sequence[Job], failed: Collection[str]) -> set[str]:
    """Digests of the jobs that need one of the `failed`, or one that does."""
    found: set[str] = set()
    while failed:
        failed = {job.key.digest for job in jobs if any(need.digest in failed for need in job.needs)} - found
        found |= failed
    return found


def drain_nothing(
    jobs: Sequence[Job], work: Work, store: Store, *, watch: Watch | None = None, until: float | None = None
) -> Outcome:
    """An engine for a look at what a store holds, on a machine that could not have made it."""
    if watch is not None:
        watch({})
    return outcome(jobs, store, "", store.digests())


def begin(jobs: Sequence[Job], store: Store) -> frozenset[str]:
    """Digests of the results that are there; an error where a job needs what is neither there nor a job."""
    there = frozenset(store.digests())
    known = there | {job.key.digest for job in jobs}
    for job in graph(jobs):
        for need in job.needs:
            if need.digest not in known:
                raise InputError(
                    f"the job {job.key} needs {need}, which is neither a job of this run nor in {store.root}"
                )
    return there


def drain(
    jobs: Sequence[Job],
    work: Work,
    store: Store,
    *,
    run: str,
    lanes: Sequence[Lane] = (PlainLane(),),
    retries: int = 1,
    until: float | None = None,
    watch: Watch | None = None,
) -> None:
    """Do jobs in turns, one in each lane, until every job has come to an end, here or elsewhere.

    - A job whose process died is done alone, and fails when `run` has begun it `retries` + 1 times.
    - A need that is damaged or gone is made again, and the job after it, up to three times.
    - A job that finds no room on its device is put back, and this process has a lane less until a job has ended well
      and a minute has passed. One that is alone and finds none is tried again after 15, 30 and 60 seconds, then fails.

    Raises `StoreError` where the store cannot be written, and `EngineError` where the device failed.
    """
    _Drain(jobs, work, store, run, list(lanes), retries, until).carry_out(watch)


@dataclass(eq=False)
class _Running:
    job: Job
    steps: Steps
    lane: Lane
    claim: Claim
    stack: ExitStack
    began: float

    def advance(self) -> Mapping[str, bytes] | BaseException | None:
        """Take a step; the files of the result or what was raised, if the job has come to an end."""
        try:
            next(self.steps)
        except StopIteration as end:
            return end.value if isinstance(end.value, Mapping) else InputError(_NO_FILES.format(end.value))
        except (Exception, SystemExit) as error:
            return error
        return None


class _Drain:
    def __init__(
        self,
        jobs: Sequence[Job],
        work: Work,
        store: Store,
        run: str,
        lanes: list[Lane],
        retries: int,
        until: float | None,
    ) -> None:
        self.jobs, self.work, self.store, self.run = graph(jobs), work, store, run
        self.lanes, self.free, self.width, self.retries, self.until = lanes, list(lanes), len(lanes), retries, until
        self.plan = {job.key.digest for job in self.jobs}
        self.running: list[_Running] = []
        # What is known of the store. It is listed again at times, since others work on it too.
        self.there: set[str] = set()
        self.over: set[str] = set()
        self.listed_at, self.list_at, self.look_at, self.pause = -inf, 0.0, 0.0, _FIRST_LOOK
        self.losses: Counter[tuple[str, str]] = Counter()
        # Jobs without room: until when nothing is begun, when a lane may come back, and pauses made for each kind.
        self.paused_until, self.narrow_until, self.wider_at = 0.0, 0.0, inf
        self.pauses: Counter[str] = Counter()
        self.idle_since = inf

    def carry_out(self, watch: Watch | None) -> None:
        watch_at = monotonic() + _WATCH_EVERY
        try:
            while True:
                if watch is not None and monotonic() >= watch_at:
                    watch(self.store.failures(self.run))
                    watch_at = monotonic() + _WATCH_EVERY
                self.start()
                if not self.running:
                    if self.late or self.plan <= self.there | self.over:
                        return
                    self.wait()
                for running in list(self.running):
                    self.step(running)
        finally:
            for running in self.running:
                # On a device that failed jobs cannot be put away in good order, and each has a claim to let go of.
                with suppress(RuntimeError):
                    running.steps.close()
                running.stack.close()

    @property
    def late(self) -> bool:
        return self.until is not None and time() >= self.until

    def start(self) -> None:
        """Give every free lane a job that can start."""
        now = monotonic()
        if now >= self.wider_at:
            self.width, self.wider_at = min(self.width + 1, len(self.lanes)), inf
        while now >= self.paused_until and not self.late:
            width = 1 if any(running.claim.deaths for running in self.running) else self.width
            if len(self.running) >= width or (running := self.next()) is None:
                return
            self.running.append(running)

    def next(self) -> _Running | None:
        """The best job that can start, begun; None where there is none, and then for a while."""
        now = monotonic()
        if now < self.look_at:
            return None
        if now >= self.list_at:
            self.list()
        found = self.pick()
        if found is None and now - self.listed_at >= _FIRST_LOOK:
            self.list()
            found = self.pick()
        if found is None:
            self.look_at = max(monotonic() + self.pause, self.list_at - _LIST_EVERY)
            self.list_at = min(self.list_at, self.look_at)
        self.pause = min(2 * self.pause, _LONGEST_LOOK) if found is None else _FIRST_LOOK
        return found

    def pick(self) -> _Running | None:
        busy = {running.job.key.digest for running in self.running}
        for job in self.jobs:
            if job.key.digest in self.there or job.key.digest in self.over or job.key.digest in busy:
                continue
            if any(need.digest in self.plan and need.digest not in self.there for need in job.needs):
                continue
            if running := self.claimed(job):
                return running
        return None

    def list(self) -> None:
        self.listed_at = monotonic()
        self.there = set(self.store.digests())
        failed = self.plan & self.store.failures(self.run).keys() - self.there
        self.over = failed | blocked_by(self.jobs, failed)
        # On a disk that is slow to list, a tenth of the time is spent on it at most.
        self.list_at = monotonic() + _LIST_EVERY + 10 * (monotonic() - self.listed_at)

    def claimed(self, job: Job) -> _Running | None:
        """The job, begun, or None where another process does it, or it has come to an end, or should be done alone."""
        if self.store.has(job.key):
            self.there.add(job.key.digest)
            return None
        with ExitStack() as stack:
            claim = stack.enter_context(self.store.claim(job.key, self.run))
            if claim is None or (claim.deaths and self.running):
                return None
            if self.store.has(job.key):
                claim.forget = True
                self.there.add(job.key.digest)
                return None
            if self.store.failure(job.key.digest, self.run):
                self.give_up(job.key)
                return None
            if claim.deaths > self.retries:
                self.fail(claim, f"its process died {claim.deaths} times, perhaps for want of memory")
                return None
            claim.begin()
            steps = _steps(self.work, job, self.store)
            return _Running(job, steps, self.free.pop(), claim, stack.pop_all(), perf_counter())

    def step(self, running: _Running) -> None:
        """Take a step; what jobs raise is theirs, what a lane raises ends this process, since its device has failed."""
        try:
            with running.lane.turn():
                ended = running.advance()
        except Exception as error:
            running.claim.forget = False
            first = next(iter(str(error).splitlines()), type(error).__name__)
            raise EngineError(f"a lane failed, and this process can do no more: {first}. {_GO_ON}") from error
        if ended is None:
            return
        if isinstance(ended, Unfit):
            running.claim.forget = False
            raise EngineError(f"{ended}. {_GO_ON}") from ended
        if isinstance(ended, StoreError) and not isinstance(ended, Missing):
            raise ended
        try:
            self.end(running, ended)
        finally:
            running.stack.close()
        self.running.remove(running)
        self.free.append(running.lane)
        self.look_at, self.idle_since = 0.0, monotonic()

    def end(self, running: _Running, ended: Mapping[str, bytes] | BaseException) -> None:
        if isinstance(ended, Mapping):
            try:
                running.claim.write(ended, seconds=perf_counter() - running.began)
            except InputError as error:
                self.fail(running.claim, str(error))
                return
            self.there.add(running.job.key.digest)
            del self.pauses[running.job.key.kind]
            if self.width < len(self.lanes):
                self.wider_at = self.narrow_until
        elif isinstance(ended, NoRoom):
            self.turn_away(running, ended)
        elif isinstance(ended, Missing):
            self.lose(running, ended)
        else:
            reason = str(ended) if isinstance(ended, WarpError) else f"{type(ended).__name__}: {ended}"
            self.fail(running.claim, reason, "".join(traceback.format_exception(ended)))

    def lose(self, running: _Running, error: Missing) -> None:
        """A result that the job read was damaged or gone."""
        lost, job = error.digest, running.job
        if lost not in self.plan or lost not in {need.digest for need in job.needs}:
            self.fail(running.claim, f"{error} (it is no job that this one needs in this run)")
            return
        self.losses[job.key.digest, lost] += 1
        if self.losses[job.key.digest, lost] > _MOST_LOSSES:
            self.fail(running.claim, f"{error} (for the {_MOST_LOSSES + 1}th time; check the disk)")
        self.list_at = 0.0

    def turn_away(self, running: _Running, error: NoRoom) -> None:
        """A job found no room on its device."""
        kind, now = running.job.key.kind, monotonic()
        self.width, self.wider_at, self.narrow_until = max(1, len(self.running) - 1), inf, now + _NARROW
        if len(self.running) > 1:
            return
        if self.pauses[kind] == len(_PAUSES):
            self.pauses[kind] -= 1  # The next job of the kind is tried once more, and not for two minutes.
            self.fail(running.claim, str(error))
            return
        self.paused_until = now + _PAUSES[self.pauses[kind]]
        self.pauses[kind] += 1
        self.rest()

    def fail(self, claim: Claim, reason: str, trace: str = "") -> None:
        claim.forget = True
        claim.fail(reason, trace)
        self.give_up(claim.key)

    def give_up(self, key: Key) -> None:
        self.over |= {key.digest, *blocked_by(self.jobs, {key.digest})}

    def wait(self) -> None:
        now = monotonic()
        if now - self.idle_since >= _REST_AFTER:
            self.rest()
        late = inf if self.until is None else self.until - time()
        sleep(max(0.0, min(max(self.look_at, self.paused_until) - now, late, _LIST_EVERY)))

    def rest(self) -> None:
        """Let all lanes give back what they keep, since other processes may need it."""
        self.idle_since = inf
        for lane in self.lanes:
            lane.rest()


def _steps(work: Work, job: Job, store: Store) -> Steps:
    # What the call itself raises is the job's too.
    return (yield from work(job, store))
