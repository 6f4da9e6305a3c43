"""Jobs and their keys: everything that decides a result is in the key of it, and of all that rests on it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from warp_unlearning.data.preprocess import load_data
from warp_unlearning.studies.cell_settings import StudyArm
from warp_unlearning.studies.shadow_plan import ShadowPlan, Task, forgotten, plan_shadows, retained
from warp_unlearning.studies.shadow_settings import Arm, ShadowSettings

SETTINGS = ShadowSettings(
    data={"name": "digits"},
    network="mlp",
    network_options={"hidden": [16]},
    training={"epochs": 2, "batch_size": 64, "lr": 0.05},
    arms=(Arm("ngp", {"alpha": 0.9}), Arm("ngp", {"alpha": 0.9}, "cob", {"spread": 0.5})),
    shadows=4,
    forget_sets=2,
    share=0.5,
    pairs=1,
    seed=3,
)


def planned(settings: ShadowSettings, *, network_digest: str | None = None, secret_name: str = "a") -> ShadowPlan:
    return plan_shadows(settings, load_data("digits"), network_digest=network_digest, secret_name=secret_name)


def keys(plan: ShadowPlan, kind: str) -> set[str]:
    return {job.key.digest for job in plan.jobs if job.key.kind == kind}


def test_every_job_is_there_once_and_after_what_it_needs() -> None:
    plan = planned(SETTINGS)
    kinds = [job.key.kind for job in plan.jobs]
    assert {kind: kinds.count(kind) for kind in kinds} == {"train": 4, "score": 20, "unlearn": 16, "pair": 2}
    assert len({job.key for job in plan.jobs}) == len(plan.jobs)
    seen: set[Any] = set()
    for job in plan.jobs:
        assert set(job.needs) <= seen
        seen.add(job.key)
    assert plan.tasks[plan.key(Task("unlearn", 1, 0, 1)).digest] == Task("unlearn", 1, 0, 1)


def test_sets_are_disjoint_and_within_what_a_shadow_trained_on() -> None:
    design = planned(SETTINGS).design
    for shadow in range(4):
        parts = [set(forgotten(design, shadow, part).tolist()) for part in range(2)]
        assert not parts[0] & parts[1]
        for part in range(2):
            kept = set(retained(design, shadow, part).tolist())
            assert not kept & parts[part]
            assert kept | parts[part] == set(design.trained[shadow].nonzero()[0].tolist())


CHANGES: dict[str, Any] = {
    "network": "resnet18",
    "network_options": {"hidden": [17]},
    "training": {"epochs": 3, "batch_size": 64, "lr": 0.05},
    "share": 0.6,
    "seed": 4,
    "device": "cuda",
}


@pytest.mark.parametrize("name", list(CHANGES))
def test_what_decides_a_training_changes_every_key(name: str) -> None:
    before, after = planned(SETTINGS), planned(replace(SETTINGS, **{name: CHANGES[name]}))
    changed = ("train", "score", "unlearn", "pair") if name != "share" else ("unlearn",)
    for kind in changed:
        assert not keys(before, kind) & keys(after, kind)


@pytest.mark.parametrize(
    "arms",
    [
        (Arm("scrub", {"alpha": 0.9}), SETTINGS.arms[1]),
        (Arm("ngp", {"alpha": 0.8}), SETTINGS.arms[1]),
        (SETTINGS.arms[0], Arm("ngp", {"alpha": 0.9}, "warp", {"spread": 0.5})),
        (SETTINGS.arms[0], Arm("ngp", {"alpha": 0.9}, "cob", {"spread": 0.4})),
    ],
)
def test_an_arm_changes_the_keys_of_its_own_models_alone(arms: tuple[Arm, ...]) -> None:
    before, after = planned(SETTINGS), planned(replace(SETTINGS, arms=arms))
    assert keys(before, "train") == keys(after, "train")
    for index, (old, new) in enumerate(zip(SETTINGS.arms, arms, strict=True)):
        for kind in ("unlearn", "score"):
            pair = [plan.key(Task(kind, 2, 1, index)) for plan in (before, after)]
            assert (pair[0] == pair[1]) is (old == new)


@pytest.mark.parametrize(
    ("method", "digest"),
    [
        ("ngp", "f93fca034e2673f8"),
        ("pgu", "a0fb4946a943f0f6"),
        ("srf_on", None),
        ("langevin", None),
    ],
)
def test_results_of_methods_that_changed_are_not_found_again(method: str, digest: str | None) -> None:
    """The keys of the others are those of version 0.1."""
    arm = Arm(method, {"lr": 0.02})
    key = planned(replace(SETTINGS, arms=(arm,))).key(Task("unlearn", 0, 0, 0))
    expected = {"method": method, "method_settings": {"lr": 0.02}, "defense": None, "defense_settings": {}}
    assert key.ingredients["arm"] == expected | ({"algorithm": 2} if digest is None else {})
    assert digest is None or key.digest.startswith(digest)
    called = StudyArm(method, {"lr": 0.02}, called="other", sets=2, swept={"lr": 0.02})
    assert called.ingredients == arm.ingredients


def test_the_users_file_and_the_secret_decide_too() -> None:
    before = planned(SETTINGS)
    assert not keys(before, "train") & keys(planned(SETTINGS, network_digest="abc"), "train")
    after = planned(SETTINGS, secret_name="b")
    alone, defended = ([plan.key(Task("unlearn", 0, 0, arm)) for plan in (before, after)] for arm in (0, 1))
    assert alone[0] == alone[1]
    assert defended[0] != defended[1]


def test_every_setting_is_accounted_for() -> None:
    decided = {*CHANGES, "arms"}
    # The first three decide which jobs there are; data enter by their digest, the file by its own.
    elsewhere = {"shadows", "forget_sets", "pairs", "data", "network_file"}
    assert {f.name for f in fields(ShadowSettings)} == decided | elsewhere
