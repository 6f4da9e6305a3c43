"""What a worker process of the local engine does: takes jobs from a pipe until it is closed, or its parent is gone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from threading import Thread
from time import time
from typing import Literal

from .job_attempt import Attempt, attempt
from .job_work import unpack
from .jobs import Job, Work
from .lane_worker import Lanes, fleet_of, serve_in_lanes
from .store import Store

Told = (
    tuple[Literal["ready"]]
    | tuple[Literal["unloadable"], str]
    | tuple[Literal["no lanes"], str]
    | tuple[Literal["unfit"], str]
    | tuple[Literal["began"], str, float]
    | tuple[Literal["retried"], str, str]
    | tuple[Literal["returned"], str]
    | tuple[Literal["ended"], str, Attempt]
)
"""What a worker says: that it is ready, or why it cannot be, or can be no longer and leaves; of a job, by its digest,
when it was begun, why it found no room, that it came too late, and how the attempt ended.
"""

_PARENT_CHECK = 1.0


def serve(pipe: Connection, work: bytes, store: Store, threads: int, lanes: Lanes | None) -> None:
    """Do the jobs that come through `pipe`, one after the other, or as many at once as there are lanes."""
    # The terminal sends an interrupt to the whole group; the parent decides what becomes of its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    Thread(target=_leave_with_parent, daemon=True).start()
    # The parent is gone, or has stopped listening.
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            loaded = unpack(work, threads=threads)
        except Exception:
            pipe.send(("unloadable", traceback.format_exc()))
            return
        if lanes is None:
            pipe.send(("ready",))
            _serve_one_by_one(pipe, loaded, store)
            return
        try:
            fleet = fleet_of(pipe, loaded, store, lanes)
        except Exception as error:
            pipe.send(("no lanes", f"{type(error).__name__}: {error}"))
            return
        pipe.send(("ready",))
        serve_in_lanes(pipe, fleet)


def _serve_one_by_one(pipe: Connection, work: Work, store: Store) -> None:
    while True:
        job: Job = pipe.recv()[0]
        digest = job.key.digest

        def began(digest: str = digest) -> None:
            pipe.send(("began", digest, time()))

        ended = attempt(job, work=work, store=store, began=began)
        if ended.end == "unfit":
            pipe.send(("unfit", ended.reason))
            return
        pipe.send(("ended", digest, ended))


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None:
        return
    # The number of the parent too: a process that the parent forked would keep the sentinel open.
    while not wait([parent.sentinel], timeout=_PARENT_CHECK) and os.getppid() == parent.pid:
        continue
    os._exit(1)
