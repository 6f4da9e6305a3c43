"""Audits of the arms of a carried-out run, against the same computed by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from warp_unlearning import shadow_audit
from warp_unlearning.attacks.membership.audit import Audit
from warp_unlearning.stats.exchange import holm
from warp_unlearning.stats.intervals import mean
from warp_unlearning.studies.arm_audits import (
    SLICES,
    arm_verdict,
    memorised_slices,
    reduction,
    retained_change,
    slice_reductions,
)
from warp_unlearning.studies.shadow_plan import Task
from warp_unlearning.studies.shadow_scores import ArmScores, OriginalScores
from warp_unlearning.studies.stored import arrays_of


def test_an_arm_is_the_audit_of_its_scores(carried: Any) -> None:
    plan, store = carried.prepared.plan, carried.prepared.store
    for index, arm in enumerate(carried.results["arms"]):
        rows = [
            arrays_of(store.read(plan.key(Task("score", shadow, part, index))).read("scores.npz"))["confidence"]
            for shadow in range(4)
            for part in range(2)
        ]
        design = plan.design
        audit = shadow_audit(np.stack(rows), forgotten=design.forgotten, never=design.never, groups=design.groups)
        assert arm["all"]["auc"]["value"] == audit.auc
        interval = audit.interval()
        assert (arm["all"]["auc"]["low"], arm["all"]["auc"]["high"]) == (interval.low, interval.high)
        assert (arm["missing"], arm["complete"]) == (0, True)


def test_a_change_of_basis_changes_no_answer_and_reduces_nothing(carried: Any) -> None:
    base, moved = carried.results["arms"][:2]
    assert (base["name"], moved["name"]) == ("ngp", "ngp + cob")
    assert abs(base["all"]["auc"]["value"] - moved["all"]["auc"]["value"]) < 0.01
    assert base["reduction"] is None
    assert abs(moved["reduction"]["difference"]["value"]) < 0.01
    assert base["strongest"]["pairs"] == 1
    assert len(carried.results["arms"]) == 4


SHADOWS, POINTS = 10, 800


def _simulated(seed: int, shadows: list[int], *, hidden: bool) -> tuple[ArmScores, OriginalScores]:
    """Two models of each shadow, which forgot a quarter of the points it trained on each; every twentieth point is
    memorised: its confidence is much higher where it was trained on, and stays so unless `hidden`.
    """
    draw = np.random.default_rng(seed)
    trained = np.random.default_rng(0).random((SHADOWS, POINTS)) < 0.5
    memorised = np.arange(POINTS) % 20 == 0
    gain = np.where(memorised, 6.0, 0.8)
    part = np.random.default_rng(1).integers(4, size=(SHADOWS, POINTS))
    rows = [(s, p) for s in shadows for p in range(2)]
    forgotten = np.stack([trained[s] & (part[s] == p) for s, p in rows])
    never = np.stack([~trained[s] for s, _ in rows])
    left = np.where(memorised & hidden, 0.3, 0.6)
    confidence = draw.normal(size=forgotten.shape) + gain * (~never) * np.where(forgotten, left, 1.0)
    nothing = np.empty(0)
    groups = np.array([s for s, _ in rows])
    scores = ArmScores(confidence, groups, forgotten, never, ~never & ~forgotten, {}, nothing, nothing, (), (), 0)
    originals = OriginalScores(
        np.random.default_rng(2).normal(size=trained.shape) + gain * trained,
        np.arange(SHADOWS),
        trained,
        np.ones(SHADOWS),
    )
    return scores, originals


def test_what_a_defence_changes_of_a_slice_is_the_difference_of_the_slices() -> None:
    base, originals = _simulated(10, list(range(SHADOWS)), hidden=False)
    defended, _ = _simulated(11, list(range(SHADOWS)), hidden=True)
    before, after = (memorised_slices(s, _whole(s), originals) for s in (base, defended))
    found = slice_reductions(defended, base, originals)
    assert list(found) == ["most memorised 1 %", "most memorised 5 %"]
    for name, change in found.items():
        one, other = before[name], after[name]
        assert one is not None
        assert other is not None
        difference = one.auc - other.auc
        assert change["difference"]["value"] == pytest.approx(difference)
        assert change["auc"]["value"] == pytest.approx(difference / (one.auc - 0.5))
        assert change["difference"]["low"] > 0.05
    whole = reduction(defended, base)
    assert whole is not None
    assert whole["difference"]["value"] < 0.05


def test_the_verdict_of_an_arm_is_that_of_its_audits() -> None:
    scores, originals = _simulated(10, list(range(SHADOWS)), hidden=False)
    scores = replace(scores, accuracy={"test": np.repeat(0.9 + 0.001 * np.arange(SHADOWS), 2)})
    originals = replace(originals, accuracy=np.full(SHADOWS, 0.91))
    audits = {"U-LiRA": _whole(scores)} | {
        k: v for k, v in memorised_slices(scores, _whole(scores), originals).items() if v
    }
    kept = retained_change(scores, originals)
    assert kept is not None
    found = arm_verdict(scores, audits, kept.before, originals)
    assert [e.attack for e in found.evidence] == list(audits)
    assert [e.area for e in found.evidence] == [audit.interval() for audit in audits.values()]
    assert found.evidence[0].original == kept.before.interval()
    assert found.evidence[-1].seen.low > found.evidence[0].seen.low > 0.05
    np.testing.assert_allclose([e.adjusted for e in found.evidence], holm([a.p_value() for a in audits.values()]))
    drop = mean(0.01 - 0.001 * np.arange(SHADOWS))
    assert f"down {100 * drop.value:.1f}".replace("0.", ".") in found.claims[0].sentence
    assert found.exit == 1


def test_slices_are_compared_over_the_shadows_that_all_have() -> None:
    base, originals = _simulated(10, list(range(SHADOWS)), hidden=False)
    few, _ = _simulated(11, list(range(7)), hidden=True)
    scored = OriginalScores(
        originals.confidence[1:], originals.shadows[1:], originals.trained[1:], originals.accuracy[1:]
    )
    found = slice_reductions(few, base, scored)["most memorised 5 %"]
    assert found["shadows"] == 6
    same = [replace_rows(each, np.isin(each.groups, range(1, 7))) for each in (few, base)]
    assert found == slice_reductions(same[0], same[1], scored)["most memorised 5 %"]
    assert slice_reductions(replace_rows(few, few.groups == 1), base, scored) == dict.fromkeys(SLICES)


def _whole(scores: ArmScores) -> Audit:
    return shadow_audit(scores.confidence, forgotten=scores.forgotten, never=scores.never, groups=scores.groups)


def replace_rows(scores: ArmScores, rows: Any) -> ArmScores:
    """The models of some rows."""
    fields = ("confidence", "groups", "forgotten", "never", "kept")
    return replace(scores, **{name: getattr(scores, name)[rows] for name in fields})
