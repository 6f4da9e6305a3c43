"""Jobs in processes on this machine: as many as there are cores, one torch thread each, or a few with several lanes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from ..errors import InputError
from .cores import available_cores
from .engine import EngineError, Outcome
from .events import Event, Watch
from .job_schedule import Schedule
from .job_work import THREAD_VARIABLES, pack
from .jobs import Job, Work, stepped
from .lane_worker import Lanes
from .local_worker import Told, serve
from .store import Store

_FAILED_STARTS = 3
_LAST_SECONDS = 10.0


@dataclass(frozen=True)
class LocalEngine:
    """So many worker processes (all cores by default), each with so many threads.

    One thread each by default: sums over threads depend on how many there are, so results are the same bits on every
    machine with the same processor and torch only where that number is. A worker that dies (the kernel ends one
    that needs too much memory) is replaced, and its job is done again `retries` times before it fails.

    With `lanes`, a worker does as many jobs at once as it has of them, step by step, as `FleetEngine` does. The
    `environment` is added to that of the workers.
    """

    workers: int | None = None
    threads: int = 1
    retries: int = 1
    lanes: Lanes | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least in (("workers", 1), ("threads", 1), ("retries", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} is {value}; give {least} or more")

    def run(
        self, jobs: Sequence[Job], *, work: Work, store: Store, watch: Watch, until: float | None = None
    ) -> Outcome:
        """Put the result of every job in `store`. An interrupt ends the workers at once; what is finished is kept."""
        if self.lanes is not None:
            stepped(work)
        schedule = Schedule(jobs, store=store, watch=watch, retries=self.retries, until=until)
        at_once = 1 if self.lanes is None else self.lanes.count
        count = min(self.workers or max(1, available_cores() // self.threads), ceil(schedule.left / at_once))
        variables = {**dict.fromkeys(THREAD_VARIABLES, str(self.threads)), **self.environment}
        crew = _Crew(count, _Orders(pack(work), store, self.threads, self.lanes, variables))
        try:
            while not schedule.over:
                crew.hand_out(schedule)
                # What was left may have been found in the store, and no worker has anything to say.
                if not schedule.over:
                    crew.listen(schedule, watch)
            crew.dismiss()
        except BaseException:
            crew.kill()
            raise
        return schedule.outcome()


@dataclass(frozen=True, eq=False)
class _Orders:
    """What every worker is started with."""

    work: bytes
    store: Store
    threads: int
    lanes: Lanes | None
    variables: Mapping[str, str]

    @property
    def at_once(self) -> int:
        """How many jobs a worker does side by side."""
        return 1 if self.lanes is None else self.lanes.count


@dataclass(eq=False)
class _Worker:
    process: SpawnProcess
    pipe: Connection
    ready: bool = False
    deaf: bool = False
    farewell: str = ""
    jobs: dict[str, Job] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)


class _Crew:
    """The worker processes, started when there is something for them to do."""

    def __init__(self, size: int, orders: _Orders) -> None:
        self._size = size
        self._orders = orders
        self._workers: list[_Worker] = []
        self._suspects: set[str] = set()
        self._failed_starts = 0

    def hand_out(self, schedule: Schedule) -> None:
        """Give jobs that can start to workers that can do more, those with the fewest first."""
        while self._has_room:
            job = schedule.take()
            if job is None:
                return
            worker = self._freest()
            if job.key.digest in self._suspects and worker.jobs:
                # It is done by itself, and gets the next worker that has nothing else to do.
                schedule.put_back(job)
                return
            try:
                worker.pipe.send((job, schedule.time_left))
                worker.jobs[job.key.digest] = job
            except OSError:
                # It died while it waited; `listen` finds that out.
                worker.deaf = True
                schedule.put_back(job)

    @property
    def _roomy(self) -> list[_Worker]:
        """Workers that could do another job, but those with one that has seen a process die."""
        return [
            worker
            for worker in self._workers
            if not worker.deaf and len(worker.jobs) < self._orders.at_once and self._suspects.isdisjoint(worker.jobs)
        ]

    @property
    def _has_room(self) -> bool:
        return len(self._workers) < self._size or bool(self._roomy)

    def _freest(self) -> _Worker:
        roomy = self._roomy
        idle = [worker for worker in roomy if not worker.jobs]
        if idle:
            return idle[-1]
        return self._start() if len(self._workers) < self._size else min(roomy, key=lambda worker: len(worker.jobs))

    def listen(self, schedule: Schedule, watch: Watch) -> None:
        """Wait until a worker says something or dies, or a job of another process should be asked about."""
        timeout = schedule.pause() if self._has_room else None
        heard = {*wait([end for worker in self._workers for end in (worker.pipe, worker.process.sentinel)], timeout)}
        for worker in [w for w in self._workers if w.pipe in heard or w.process.sentinel in heard]:
            self._hear(worker, schedule, watch)

    def dismiss(self) -> None:
        """End idle workers."""
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(_LAST_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End all workers at once. The store is whole at every moment, so nothing finished is lost."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.pipe.close()
        self._workers.clear()

    def _start(self) -> _Worker:
        ours, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        orders = self._orders
        process = context.Process(
            target=serve, args=(theirs, orders.work, orders.store, orders.threads, orders.lanes), daemon=True
        )
        with _without_interrupts(), _environment(orders.variables):
            process.start()
        theirs.close()
        worker = _Worker(process, ours)
        self._workers.append(worker)
        return worker

    def _hear(self, worker: _Worker, schedule: Schedule, watch: Watch) -> None:
        gone, said = not worker.process.is_alive(), []
        # What it said before it died counts, so its pipe is emptied after it is known to be dead.
        try:
            while worker.pipe.poll():
                said.append(worker.pipe.recv())
        except (EOFError, OSError):
            gone = True
        # Outside of the block: who watches may fail with an error of the same kind, as when its terminal is gone.
        for told in said:
            self._note(worker, told, schedule, watch)
        if gone:
            worker.process.join()
            self._replace(worker, schedule)

    def _note(self, worker: _Worker, told: Told, schedule: Schedule, watch: Watch) -> None:
        if told[0] == "ended":
            worker.begun.discard(told[1])
            schedule.settle(worker.jobs.pop(told[1]), told[2])
        elif told[0] == "returned":
            schedule.put_back(worker.jobs.pop(told[1]))
        elif told[0] == "no lanes":
            raise EngineError(f"a worker process has nowhere to work: {told[1]}")
        elif told[0] == "unloadable":
            raise EngineError(
                f"a worker process cannot load the work; make it a function or a class of a module:\n{told[1]}"
            )
        elif told[0] == "unfit":
            worker.deaf, worker.farewell = True, told[1]
            # With a device that failed it may not come to an end by itself.
            worker.process.kill()
        elif told[0] == "began":
            worker.begun.add(told[1])
            watch(Event("started", worker.jobs[told[1]].key, at=told[2]))
        elif told[0] == "retried":
            watch(Event("retried", worker.jobs[told[1]].key, reason=told[2]))
        else:
            worker.ready, self._failed_starts = True, 0

    def _replace(self, worker: _Worker, schedule: Schedule) -> None:
        self._workers.remove(worker)
        worker.pipe.close()
        reason = worker.farewell or _how_it_died(worker.process.exitcode)
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts == _FAILED_STARTS:
                raise EngineError(
                    f"{_FAILED_STARTS} worker processes in a row ended before they could start: {reason}; see what "
                    'they printed (a script that runs an engine needs `if __name__ == "__main__":`)'
                )
        self._suspects |= worker.begun
        for digest, job in worker.jobs.items():
            if digest in worker.begun:
                schedule.died(job, reason)
            else:
                schedule.put_back(job)


def _how_it_died(code: int | None) -> str:
    if code is None or code >= 0:
        return f"its process ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = ", perhaps for want of memory" if name == "SIGKILL" else ""
    return f"its process was ended by {name}{hint}"


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Interrupts wait, here; a process started meanwhile has them blocked from its first moment on."""
    # It unblocks interrupts when it is started, so it is started before they are blocked.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables that libraries read when they are loaded, set for the processes started meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
