"""One attempt at one job, in whatever process it happens."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator
from dataclasses import dataclass
from time import perf_counter
from typing import Literal

from ..errors import WarpError
from .jobs import Job, NoRoom, SteppedWork, Steps, Unfit, Work, finished
from .store import Claim, Missing, Store, StoreError


@dataclass(frozen=True)
class Attempt:
    """How an attempt ended; plain data that travels between processes.

    finished; found: the result was there; busy: another process is doing the job; crowded: its device has no room for
    it; unfit: this process can do no more work; failed: the work raised; lost: a result it needs is corrupt or gone,
    that of the key with digest `lost`; unusable: the store cannot be written.
    """

    end: Literal["finished", "found", "busy", "crowded", "unfit", "failed", "lost", "unusable"]
    seconds: float | None = None
    reason: str = ""
    traceback: str = ""
    lost: str = ""


def attempt(job: Job, *, work: Work, store: Store, began: Callable[[], None]) -> Attempt:
    """Claim the job, do it and store its result; `began` is called when the claim is got and there is no result yet."""

    def at_once(job: Job, store: Store) -> Steps:
        yield None
        return work(job, store)

    return finished(attempt_in_steps(job, work=at_once, store=store, began=began))


def attempt_in_steps(
    job: Job, *, work: SteppedWork, store: Store, began: Callable[[], None]
) -> Generator[object, None, Attempt]:
    """The same, a step of the work at a time."""
    try:
        with store.claim(job.key) as claim:
            if store.has(job.key):
                return Attempt("found")
            if claim is None:
                return Attempt("busy")
            began()
            return (yield from _do(job, work=work, store=store, claim=claim))
    except StoreError as error:
        return Attempt("unusable", reason=str(error))


def _do(job: Job, *, work: SteppedWork, store: Store, claim: Claim) -> Generator[object, None, Attempt]:
    start = perf_counter()
    try:
        files = yield from work(job, store)
    except NoRoom as error:
        return Attempt("crowded", reason=str(error))
    except Unfit as error:
        return Attempt("unfit", reason=str(error))
    except Missing as error:
        return Attempt("lost", reason=str(error), lost=error.digest)
    except StoreError:
        raise
    except (Exception, SystemExit) as error:
        return _failure(error)
    seconds = perf_counter() - start
    try:
        claim.write(files, seconds=seconds)
    except StoreError:
        raise
    except Exception as error:
        return _failure(error)
    return Attempt("finished", seconds=seconds)


def _failure(error: Exception | SystemExit) -> Attempt:
    reason = str(error) if isinstance(error, WarpError) else f"{type(error).__name__}: {error}"
    return Attempt("failed", reason=reason, traceback="".join(traceback.format_exception(error)))
