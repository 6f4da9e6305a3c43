"""Jobs on the machines of a Ray cluster (extra `ray`), with the store on a disk that all of them see at one path.

Each task writes its result to the store itself, so what a machine had finished before it died is kept. A job whose
machine or process died is done again elsewhere. The package must be installed on every machine, in the same version.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from time import sleep
from typing import Any
from urllib.parse import urlsplit

from ..errors import InputError
from .engine import EngineError, Outcome
from .events import Event, Watch
from .job_schedule import Schedule
from .job_work import pack
from .jobs import Job, Work
from .keys import Key
from .ray_task import attempt_there
from .store import Store

_LOOK_AGAIN = 1.0
_CONNECT_SECONDS = 5.0
_START = "start one with `ray start --head`, or give the address of one that runs"


@dataclass(frozen=True)
class RayEngine:
    """The cluster at `address` ("auto": the one that runs on this machine), so many cores and GPUs a job.

    Each job computes with `threads` torch threads, one by default, as on the local engine, so that the bits of a result
    do not depend on the engine. A job is done again `retries` times when its machine or process dies. Where this
    process is connected to a cluster already, that one is used, and stays connected.
    """

    address: str = "auto"
    cpus: float = 1.0
    gpus: float = 0.0
    threads: int = 1
    retries: int = 3

    def __post_init__(self) -> None:
        for name, least in (("cpus", 0), ("gpus", 0), ("threads", 1), ("retries", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{name} is {getattr(self, name)}; give {least} or more")
        if not self.cpus and not self.gpus:
            raise InputError("a job has neither cpus nor gpus, so all would start at once; give one of them")

    def run(
        self, jobs: Sequence[Job], *, work: Work, store: Store, watch: Watch, until: float | None = None
    ) -> Outcome:
        """Put the result of every job in `store`. A job is told as started when Ray is given it."""
        ray = _imported()
        schedule = Schedule(jobs, store=store, watch=watch, retries=self.retries, until=until)
        if not schedule.left:
            return schedule.outcome()
        with _connected(ray, self.address):
            self._check_resources(ray)
            flight = _Flight(ray, self, work=pack(work), store=store, watch=watch)
            try:
                while not schedule.over:
                    flight.start(schedule)
                    flight.land(schedule)
            finally:
                flight.cancel()
        return schedule.outcome()

    def places(self, ray: Any) -> int:
        """How many jobs the cluster can do at once, as it is at this moment."""
        have = ray.cluster_resources()
        places = [have.get(name, 0.0) / each for name, each in (("CPU", self.cpus), ("GPU", self.gpus)) if each]
        return int(min(places))

    def _check_resources(self, ray: Any) -> None:
        if not self.places(ray):
            have = ray.cluster_resources()
            raise EngineError(
                f"a job asks for {self.cpus:g} cores and {self.gpus:g} GPUs, and the Ray cluster at {self.address} has "
                f"{have.get('CPU', 0):g} and {have.get('GPU', 0):g}; ask for less, or add machines with `ray start`"
            )


class _Flight:
    """The tasks that Ray has been given and that have not come back."""

    def __init__(self, ray: Any, engine: RayEngine, *, work: bytes, store: Store, watch: Watch) -> None:
        self._ray = ray
        self._engine = engine
        self._watch = watch
        self._jobs: dict[Any, Job] = {}
        self._told: set[Key] = set()
        # Ray's own retries would not be told to the watcher, so it makes none.
        self._task = ray.remote(num_cpus=engine.cpus, num_gpus=engine.gpus, max_retries=0)(attempt_there)
        self._rest = (ray.put(work), store, store.identity, engine.threads)

    def start(self, schedule: Schedule) -> None:
        """Give Ray as many jobs as the cluster has places."""
        places = max(1, self._engine.places(self._ray))
        while len(self._jobs) < places:
            job = schedule.take()
            if job is None:
                return
            if job.key not in self._told:
                self._told.add(job.key)
                self._watch(Event("started", job.key))
            self._jobs[self._task.remote(job, *self._rest)] = job

    def land(self, schedule: Schedule) -> None:
        """Wait until a task comes back, or it is time to look at the cluster or at other processes' jobs again."""
        pause = schedule.pause()
        timeout = _LOOK_AGAIN if pause is None else min(pause, _LOOK_AGAIN)
        if not self._jobs:
            sleep(timeout)
            return
        back, _ = self._ray.wait(list(self._jobs), num_returns=1, timeout=timeout)
        for task in back:
            self._settle(task, self._jobs.pop(task), schedule)

    def cancel(self) -> None:
        """End what is under way; what is finished is in the store."""
        for task in self._jobs:
            self._ray.cancel(task, force=True)
        self._jobs.clear()

    def _settle(self, task: Any, job: Job, schedule: Schedule) -> None:
        errors = self._ray.exceptions
        try:
            attempt = self._ray.get(task)
        except (
            errors.NodeDiedError,
            errors.WorkerCrashedError,
            errors.OutOfMemoryError,
            errors.LocalRayletDiedError,
        ) as e:
            self._told.discard(job.key)
            schedule.died(job, f"{type(e).__name__} on the Ray cluster: {str(e).strip().splitlines()[0]}")
        except errors.RayError as error:
            raise EngineError(
                "a machine of the Ray cluster cannot do jobs; install the same version of this package and of the work "
                f"on all of them: {error}"
            ) from error
        else:
            if attempt.end == "lost":
                self._told -= {job.key, *job.needs}
            schedule.settle(job, attempt)


def _imported() -> Any:
    try:
        return import_module("ray")
    except ImportError as error:
        raise EngineError(
            f"the Ray engine needs the extra `ray` ({error}); install it with pip install 'warp-unlearning[ray]'"
        ) from error


@contextmanager
def _connected(ray: Any, address: str) -> Iterator[None]:
    if ray.is_initialized():
        yield
        return
    _check_reachable(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise EngineError(f"no Ray cluster can be reached at {address!r}: {reason}; {_START}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Ray itself tries for a minute."""
    if address == "auto":
        return
    try:
        place = urlsplit(address if "://" in address else f"ray://{address}")
        host, port = place.hostname, place.port or (10001 if "://" in address else None)
    except ValueError:
        host, port = None, None
    if not host or not port:
        raise InputError(f"the address of the Ray cluster is {address!r}; give HOST:PORT, ray://HOST:PORT or auto")
    try:
        socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise EngineError(
            f"no Ray cluster can be reached at {address!r}: {error.strerror or error}; {_START}"
        ) from error
