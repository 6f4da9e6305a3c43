"""Processes of this machine that drain a plan together, each with so many torch threads, or with lanes of a GPU.

One thread each by default: sums over threads depend on how many there are, so results are the same bits on every
machine with the same processor and torch only where that number is. Threads of two processes that wait for each other
on the same cores can make a step a hundred times slower, so workers times threads never exceed the cores.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import ceil
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from threading import Thread
from time import time
from typing import TypeVar
from uuid import uuid4

from ..errors import InputError
from .drain import EngineError, Lane, Outcome, PlainLane, Watch, begin, drain, outcome
from .jobs import Job, Work
from .store import Store, StoreError

Item = TypeVar("Item")
Result = TypeVar("Result")

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_FAILED_STARTS = 3
_LOOK = 0.25
_PARENT_LOOK = 0.2


@dataclass(frozen=True)
class Lanes:
    """So many lanes in a process, each made by `make` there; it must be picklable."""

    count: int = 1
    make: Callable[[], Lane] = PlainLane

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InputError(f"{self.count} lanes in a process; give 1 or more")


def run_local(
    jobs: Sequence[Job],
    work: Work,
    store: Store,
    *,
    workers: int | None = None,
    lanes: Lanes = Lanes(),  # noqa: B008
    threads: int = 1,
    retries: int = 1,
    environment: Mapping[str, str] | None = None,
    watch: Watch | None = None,
    until: float | None = None,
) -> Outcome:
    """Put the result of every job in `store`, by so many processes, as many as there are cores by default.

    A process that dies (the kernel ends one that needs too much memory) is replaced, and its job done again `retries`
    times before it fails. The `environment` is added to that of the processes. An interrupt ends them at once; what is
    finished is kept.
    """
    for name, value, least in (("workers", workers, 1), ("threads", threads, 1), ("retries", retries, 0)):
        if value is not None and value < least:
            raise InputError(f"{name} is {value}; give {least} or more")
    found, run = begin(jobs, store), uuid4().hex
    left = sum(digest not in found for digest in {job.key.digest for job in jobs})
    if left and (until is None or time() < until):
        count = min(workers or max(1, available_cores() // threads), ceil(left / lanes.count))
        orders = _Orders(packed(work), tuple(jobs), store, run, lanes, threads, retries, until)
        crew = _Crew(count, orders, {**dict.fromkeys(THREAD_VARIABLES, str(threads)), **(environment or {})})
        try:
            while crew.listen():
                if watch is not None:
                    watch(store.failures(run))
        finally:
            crew.kill()
    if watch is not None:
        watch(store.failures(run))
    return outcome(jobs, store, run, found)


def run_here(
    jobs: Sequence[Job],
    work: Work,
    store: Store,
    *,
    lanes: Lanes = Lanes(),  # noqa: B008
    watch: Watch | None = None,
    until: float | None = None,
) -> Outcome:
    """Put the result of every job in `store`, by this process alone."""
    found, run = begin(jobs, store), uuid4().hex
    if any(job.key.digest not in found for job in jobs):
        drain(jobs, work, store, run=run, lanes=[lanes.make() for _ in range(lanes.count)], until=until, watch=watch)
    if watch is not None:
        watch(store.failures(run))
    return outcome(jobs, store, run, found)


@dataclass(frozen=True, eq=False)
class _Orders:
    work: bytes
    jobs: tuple[Job, ...]
    store: Store
    run: str
    lanes: Lanes
    threads: int
    retries: int
    until: float | None


@dataclass(eq=False)
class _Worker:
    process: SpawnProcess
    pipe: Connection
    ready: bool = False
    said: list[tuple[str, str]] = field(default_factory=list)


class _Crew:
    """Processes that drain, and are replaced when they die."""

    def __init__(self, count: int, orders: _Orders, variables: Mapping[str, str]) -> None:
        self._orders, self._variables = orders, variables
        self._failed_starts = 0
        self._workers: list[_Worker] = []
        for _ in range(count):
            self._start()

    def listen(self) -> bool:
        """Wait a moment, replace whoever died, and say whether anybody is left; raises what a worker cannot mend."""
        wait([end for worker in self._workers for end in (worker.pipe, worker.process.sentinel)], _LOOK)
        for worker in list(self._workers):
            # What it said before it died counts, so its pipe is emptied after it is known to be dead.
            gone = not worker.process.is_alive()
            self._hear(worker)
            if gone:
                self._leave(worker)
        return bool(self._workers)

    def kill(self) -> None:
        """End all workers at once. The store is whole at every moment, so nothing finished is lost."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.pipe.close()
        self._workers.clear()

    def _start(self) -> None:
        ours, theirs = multiprocessing.Pipe(duplex=False)
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=_serve, args=(theirs, self._orders), daemon=True)
        with _without_interrupts(), _environment(self._variables):
            process.start()
        theirs.close()
        self._workers.append(_Worker(process, ours))

    def _hear(self, worker: _Worker) -> None:
        with suppress(EOFError, OSError):
            while worker.pipe.poll():
                what, text = worker.pipe.recv()
                if what == "ready":
                    worker.ready, self._failed_starts = True, 0
                worker.said.append((what, text))
        for what, text in worker.said:
            if what == "store":
                raise StoreError(text)
            if what == "cannot":
                raise EngineError(text)

    def _leave(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.process.join()
        worker.pipe.close()
        if worker.process.exitcode == 0:
            return
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts == _FAILED_STARTS:
                raise EngineError(
                    f"{_FAILED_STARTS} worker processes in a row ended before they could start, the last with code "
                    f"{worker.process.exitcode}; see what they printed (a script that runs an engine needs "
                    '`if __name__ == "__main__":`)'
                )
        self._start()


def _serve(pipe: Connection, orders: _Orders) -> None:
    """What a worker process does."""
    # The terminal sends an interrupt to the whole group; the parent decides what becomes of its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    Thread(target=_leave_with_parent, daemon=True).start()
    # The parent may be gone, or have stopped listening.
    with suppress(BrokenPipeError, ConnectionResetError):
        try:
            work = unpacked(orders.work, threads=orders.threads)
        except Exception:
            what = "a worker process cannot load the work; make it a function or a class of a module"
            pipe.send(("cannot", f"{what}:\n{traceback.format_exc()}"))
            return
        try:
            lanes = [orders.lanes.make() for _ in range(orders.lanes.count)]
        except Exception as error:
            pipe.send(("cannot", f"a worker process has nowhere to work: {type(error).__name__}: {error}"))
            return
        pipe.send(("ready", ""))
        try:
            drain(
                orders.jobs,
                work,
                orders.store,
                run=orders.run,
                lanes=lanes,
                retries=orders.retries,
                until=orders.until,
            )
        except StoreError as error:
            pipe.send(("store", str(error)))
            sys.exit(75)
        except EngineError as error:
            sys.stderr.write(f"{error}\n")
            sys.stderr.flush()
            # With a device that failed this process may not come to an end by itself.
            os._exit(1)


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None:
        return
    # The number of the parent too: a process that the parent forked would keep the sentinel open.
    while not wait([parent.sentinel], timeout=_PARENT_LOOK) and os.getppid() == parent.pid:
        continue
    os._exit(1)


def packed(work: Work) -> bytes:
    """Bytes that our own processes unpack."""
    try:
        return pickle.dumps(work)
    except Exception as error:
        raise InputError(
            f"the work cannot be sent to another process ({error}); use a function or a class of a module"
        ) from error


def unpacked(work: bytes, *, threads: int) -> Work:
    """The work, and so many threads for torch, where the work loads it."""
    found: Work = pickle.loads(work)
    if "torch" in sys.modules:
        use_threads(threads)
    return found


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


def available_cores(quota: Path = _QUOTA) -> int:
    """Cores this process may use: its affinity, and less where a container's quota allows less."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        limit, period = quota.read_text().split()
        if limit != "max":
            cores = min(cores, max(1, int(limit) // int(period)))
    except (OSError, ValueError, ZeroDivisionError):
        return cores
    return cores


def use_threads(threads: int) -> None:
    """Let torch compute with so many threads in this process."""
    import torch

    torch.set_num_threads(threads)


def run_all(work: Callable[[Item], Result], items: Sequence[Item], *, workers: int | None = None) -> list[Result]:
    """`work` of each item, in their order, in as many processes as there are items or cores. An error in one is raised
    here, after those already running end.

    `work` is a function of a module, and items and results can be pickled between our own processes.
    """
    cores = available_cores()
    if workers is not None and not 1 <= workers <= cores:
        raise InputError(f"{workers} workers were asked for on {cores} cores; give 1 to {cores}")
    count = min(len(items), workers or cores) or 1
    if count == 1:
        return [work(item) for item in items]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, context, initializer=use_threads, initargs=(cores // count,)) as pool:
        return list(pool.map(work, items))
