"""Tasks on the machines of a Ray cluster (extra `ray`) that drain a plan together.

The store lies on a disk that all of them see at one path. Each task writes its results itself, so what a machine had
finished before it died is kept. The package must be installed on every machine, in the same version.
"""

from __future__ import annotations

import logging
import os
import platform
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from time import sleep, time
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from ..errors import InputError
from .drain import EngineError, Outcome, Watch, begin, drain, outcome
from .jobs import Job, Work
from .local import THREAD_VARIABLES, packed, unpacked
from .store import Store, StoreError

_LOOK_AGAIN = 1.0
_CONNECT_SECONDS = 5.0
_START = "start one with `ray start --head`, or give the address of one that runs"


def run_ray(
    jobs: Sequence[Job],
    work: Work,
    store: Store,
    *,
    address: str = "auto",
    cpus: float = 1.0,
    gpus: float = 0.0,
    threads: int = 1,
    retries: int = 3,
    watch: Watch | None = None,
    until: float | None = None,
) -> Outcome:
    """Put the result of every job in `store`, by as many tasks as the cluster has places of so many cores and GPUs.

    The cluster is that at `address` ("auto": the one that runs on this machine), or the one that this process is
    connected to already, which then stays connected. A task computes with `threads` torch threads, one by default, so
    that the bits of a result do not depend on the engine. A task whose machine died is started again elsewhere.
    """
    for name, value, least in (("cpus", cpus, 0), ("gpus", gpus, 0), ("threads", threads, 1), ("retries", retries, 0)):
        if value < least:
            raise InputError(f"{name} is {value}; give {least} or more")
    if not cpus and not gpus:
        raise InputError("a task has neither cpus nor gpus, so all would start at once; give one of them")
    ray = _imported()
    found, run = begin(jobs, store), uuid4().hex
    if any(job.key.digest not in found for job in jobs) and (until is None or time() < until):
        with _connected(ray, address):
            if not _places(ray, cpus, gpus):
                have = ray.cluster_resources()
                raise EngineError(
                    f"a task asks for {cpus:g} cores and {gpus:g} GPUs, and the Ray cluster at {address} has "
                    f"{have.get('CPU', 0):g} and {have.get('GPU', 0):g}; ask for less, or add machines with `ray start`"
                )
            task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(drain_there)
            orders = ray.put((packed(work), tuple(jobs))), store, store.identity, run, threads, retries, until
            _drained(ray, task, orders, lambda: _places(ray, cpus, gpus), lambda: _look(store, run, watch))
    _look(store, run, watch)
    return outcome(jobs, store, run, found)


def drain_there(
    plan: tuple[bytes, tuple[Job, ...]],
    store: Store,
    identity: str,
    run: str,
    threads: int,
    retries: int,
    until: float | None,
) -> str:
    """What a task does: drain, if this machine sees the store that the driver sees; what is wrong, if anything is."""
    try:
        if Store(store.root, create=False).identity != identity:
            raise StoreError("it is another store")
    except StoreError:
        return (
            f"the machine {platform.node()} does not see the store {store.root} of the driver; put the store on a disk "
            "that all machines of the cluster see at the same path"
        )
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    work, jobs = plan
    try:
        drain(jobs, unpacked(work, threads=threads), store, run=run, retries=retries, until=until)
    except StoreError as error:
        return str(error)
    return ""


def _drained(ray: Any, task: Any, orders: tuple[Any, ...], places: Any, look: Any) -> None:
    """Keep as many tasks as there are places until one of them has found everything at its end."""
    errors = ray.exceptions
    lost = (errors.NodeDiedError, errors.WorkerCrashedError, errors.OutOfMemoryError, errors.LocalRayletDiedError)
    tasks: list[Any] = []
    over = False
    try:
        while tasks or not over:
            while not over and len(tasks) < max(1, places()):
                tasks.append(task.remote(*orders))
            back, tasks = ray.wait(tasks, num_returns=1, timeout=_LOOK_AGAIN)
            for ended in back:
                try:
                    fault = ray.get(ended)
                except lost:
                    sleep(_LOOK_AGAIN)  # Its place may be gone only when the cluster has noticed.
                    continue
                except errors.RayError as error:
                    if isinstance(getattr(error, "cause", None), EngineError):
                        continue  # A device failed; another process may do more.
                    raise EngineError(
                        "a machine of the Ray cluster cannot do jobs; install the same version of this package and of "
                        f"the work on all of them: {error}"
                    ) from error
                if fault:
                    raise StoreError(fault)
                over = True
            look()
    finally:
        for left in tasks:
            ray.cancel(left, force=True)


def _look(store: Store, run: str, watch: Watch | None) -> None:
    if watch is not None:
        watch(store.failures(run))


def _places(ray: Any, cpus: float, gpus: float) -> int:
    """How many tasks the cluster can run at once, as it is at this moment."""
    have = ray.cluster_resources()
    return int(min(have.get(name, 0.0) / each for name, each in (("CPU", cpus), ("GPU", gpus)) if each))


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
