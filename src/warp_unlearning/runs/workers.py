"""Independent jobs on all cores: one process a job, the cores divided among them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from .cores import available_cores, share_cores, use_threads

Job = TypeVar("Job")
Result = TypeVar("Result")


def run_all(work: Callable[[Job], Result], jobs: Sequence[Job], *, workers: int | None = None) -> list[Result]:
    """`work` of each job, in the order of the jobs. An error in one is raised here, after those already running end.

    `work` is a function of a module, and jobs and results can be pickled between our own processes.
    """
    share = share_cores(len(jobs), cores=available_cores(), workers=workers)
    if share.workers == 1:
        return [work(job) for job in jobs]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(share.workers, context, initializer=use_threads, initargs=(share.threads,)) as pool:
        return list(pool.map(work, jobs))
