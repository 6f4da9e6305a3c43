"""Every study has its plan, and refuses what it has no use for."""

from __future__ import annotations

from typing import Any

import pytest

from warp_unlearning.config import ReproduceConfig
from warp_unlearning.errors import InputError
from warp_unlearning.report.paper_tables import STUDIES as SHOWN
from warp_unlearning.workflows.study_plans import plan_study, study_names


def test_every_study_is_known_and_can_be_shown() -> None:
    assert set(study_names()) == set(SHOWN)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("runtime", {"shadows": 8}),
        ("adaptive", {"methods": ["scrub"]}),
        ("reconstruction", {"epochs": 3}),
        ("adaptive", {"defenses": ["none"]}),
        ("reconstruction", {"runs": 3}),
        ("table1", {"runs": 3}),
    ],
    ids=str,
)
def test_what_a_study_has_no_use_for_is_refused(name: str, changes: dict[str, Any]) -> None:
    given = ReproduceConfig(study=name, size="small", device="cpu", **changes)
    with pytest.raises(InputError, match=f"no use for {next(iter(changes))}"):
        plan_study(given)


def test_points_that_too_few_shadows_forget_are_refused() -> None:
    given = ReproduceConfig(study="table1", size="small", device="cpu", methods=["ngp"], shadows=10)
    with pytest.raises(InputError, match=r"by 1\.6 other shadows on average.*give --shadows 12 or more"):
        plan_study(given)
    plan_study(given.model_copy(update={"shadows": 12}))


def test_some_arms_can_be_timed_some_times() -> None:
    given = ReproduceConfig(study="runtime", size="small", device="cpu", methods=["ngp"], defenses=["none", "fastwarp"])
    jobs = {runs: plan_study(given.model_copy(update={"runs": runs})).work.plan.jobs for runs in (None, 2, 5)}  # type: ignore[attr-defined]
    assert [len(found) for found in jobs.values()] == [3, 3, 3]
    times = {runs: [job.key.ingredients["runs"] for job in found[1:]] for runs, found in jobs.items()}
    assert times == {None: [5, 5], 2: [2, 2], 5: [5, 5]}
