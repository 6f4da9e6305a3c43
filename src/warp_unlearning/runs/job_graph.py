"""The jobs of a run as a graph: what needs what, and how much cost hangs on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import InputError
from .jobs import Job
from .keys import Key


@dataclass(frozen=True)
class JobGraph:
    """`jobs` in an order in which each comes after those it needs; `dependants` are those that need a job; `chain` is
    the cost of the longest chain of jobs that starts with one; `outside` are needs that are no job of this run, each
    with a job that has it.
    """

    jobs: Mapping[Key, Job]
    dependants: Mapping[Key, tuple[Key, ...]]
    chain: Mapping[Key, float]
    outside: Mapping[Key, Key]


def job_graph(jobs: Sequence[Job]) -> JobGraph:
    """The graph of `jobs`. One key twice with the same needs is one job; with other needs, or in a circle, an error."""
    unique: dict[Key, Job] = {}
    for job in jobs:
        before = unique.setdefault(job.key, job)
        if set(before.needs) != set(job.needs):
            raise InputError(f"the job {job.key} is given twice, with different needs; give it once")
    dependants: dict[Key, list[Key]] = {key: [] for key in unique}
    outside: dict[Key, Key] = {}
    for job in unique.values():
        for need in dict.fromkeys(job.needs):
            if need in unique:
                dependants[need].append(job.key)
            else:
                outside.setdefault(need, job.key)
    order = _in_order_of_need(unique, dependants)
    chain: dict[Key, float] = {}
    for key in reversed(order):
        chain[key] = unique[key].cost + max((chain[other] for other in dependants[key]), default=0.0)
    return JobGraph(
        {key: unique[key] for key in order}, {key: tuple(rest) for key, rest in dependants.items()}, chain, outside
    )


def _in_order_of_need(jobs: Mapping[Key, Job], dependants: Mapping[Key, Sequence[Key]]) -> list[Key]:
    unmet = {key: sum(need in jobs for need in set(job.needs)) for key, job in jobs.items()}
    order = [key for key, count in unmet.items() if not count]
    for key in order:
        for other in dependants[key]:
            unmet[other] -= 1
            if not unmet[other]:
                order.append(other)
    if len(order) < len(jobs):
        circle = [str(key) for key, count in unmet.items() if count]
        raise InputError(f"jobs need each other in a circle, or hang on one: {', '.join(circle[:4])}; break it")
    return order
