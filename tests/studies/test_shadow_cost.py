"""What is learned of the cost of an audit from the jobs that are done."""

from __future__ import annotations

from pathlib import Path

import pytest

from warp_unlearning.config import ShadowConfig
from warp_unlearning.studies.shadow_cost import known_seconds, pilot, seconds_to_come
from warp_unlearning.studies.shadow_plan import Task
from warp_unlearning.workflows.audit_shadow import ShadowRequest, prepare_shadows


def test_the_cost_is_learned_from_one_job_of_each_kind_and_arm(config: ShadowConfig, tmp_path: Path) -> None:
    asked = config.model_copy(update={"methods": ["ngp"], "method_options": {}})
    prepared = prepare_shadows(ShadowRequest(asked, tmp_path / "run"))
    plan, store = prepared.plan, prepared.store
    first, tasks = pilot(plan), plan.tasks
    every = {(tasks[job.key.digest].kind, tasks[job.key.digest].arm) for job in plan.jobs}
    assert {(tasks[job.key.digest].kind, tasks[job.key.digest].arm) for job in first} == every
    assert len(first) == 8
    there = {job.key for job in first}
    assert all(need in there for job in first for need in job.needs)
    assert seconds_to_come(plan, store) == 0.0
    seconds = {"train": 5.0, "score": 0.5, "unlearn": 2.0, "pair": 3.0}
    for job in first:
        task = tasks[job.key.digest]
        more = 1.0 if (task.kind, task.arm) == ("unlearn", 1) else 0.0
        store.write(job.key, {"file": b""}, seconds=seconds[task.kind] + more)
    # Three trainings, 3 + 14 scores, seven unlearnings of each arm; both pairs are done.
    assert seconds_to_come(plan, store) == pytest.approx(3 * 5.0 + 17 * 0.5 + 7 * 2.0 + 7 * 3.0)
    assert known_seconds(plan, store).keys() == {job.key.digest for job in first}
    assert sum(known_seconds(plan, store).values()) == pytest.approx(5.0 + 3 * 0.5 + 2.0 + 3.0 + 2 * 3.0)
    # A job is like those of its arm, not of its kind alone.
    store.write(plan.key(Task("unlearn", 3, 1, 1)), {"file": b""}, seconds=3.0)
    assert seconds_to_come(plan, store) == pytest.approx(3 * 5.0 + 17 * 0.5 + 7 * 2.0 + 6 * 3.0)
