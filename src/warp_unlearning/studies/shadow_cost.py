"""What a shadow audit costs, going by the jobs that are done."""

from __future__ import annotations

from contextlib import suppress

from ..runs.jobs import Job
from ..runs.store import Missing, Store
from .shadow_plan import ShadowPlan, Task


def known_seconds(plan: ShadowPlan, store: Store) -> dict[str, float]:
    """What the results that are in the store took, by digest; damaged ones are set aside."""
    found = {}
    for job in plan.jobs:
        with suppress(Missing):
            found[job.key.digest] = store.read(job.key).seconds or 0.0
    return found


def pilot(plan: ShadowPlan) -> list[Job]:
    """The jobs of the first forget set of the first shadow: one of each kind and arm, to learn what the rest costs."""
    chosen = [Task(kind, 0) for kind in ("train", "score")]
    chosen += [t for t in plan.tasks.values() if t.shadow == 0 and t.part == 0]
    keys = {plan.key(task) for task in chosen}
    return [job for job in plan.jobs if job.key in keys]


def seconds_to_come(plan: ShadowPlan, store: Store) -> float:
    """The seconds of work, on one process, that jobs not yet done will take, each like the done ones of its kind and
    arm, or of its kind where none of that arm is done.
    """
    known, tasks = known_seconds(plan, store), plan.tasks
    by_arm: dict[tuple[str, int], list[float]] = {}
    by_kind: dict[str, list[float]] = {}
    for digest, seconds in known.items():
        by_arm.setdefault((tasks[digest].kind, tasks[digest].arm), []).append(seconds)
        by_kind.setdefault(tasks[digest].kind, []).append(seconds)
    total = 0.0
    for job in plan.jobs:
        if job.key.digest not in known:
            task = tasks[job.key.digest]
            like = by_arm.get((task.kind, task.arm)) or by_kind.get(task.kind) or [0.0]
            total += sum(like) / len(like)
    return total
