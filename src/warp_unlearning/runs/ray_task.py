"""What a Ray task does: one attempt at one job, on whatever machine Ray runs it."""

from __future__ import annotations

import os
import platform

from .job_attempt import Attempt, attempt
from .job_work import THREAD_VARIABLES, unpack
from .jobs import Job
from .store import Store, StoreError


def attempt_there(job: Job, work: bytes, store: Store, identity: str, threads: int) -> Attempt:
    """Attempt `job` if this machine sees the store that the driver sees."""
    fault = _sees(store, identity)
    if fault:
        return Attempt("unusable", reason=fault)
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    return attempt(job, work=unpack(work, threads=threads), store=store, began=_nothing)


def _sees(store: Store, identity: str) -> str:
    try:
        found = Store(store.root, create=False).identity
    except StoreError as error:
        found = str(error)
    if found == identity:
        return ""
    return (
        f"the machine {platform.node()} does not see the store {store.root} of the driver; put the store on a disk "
        "that all machines of the cluster see at the same path"
    )


def _nothing() -> None:
    return
