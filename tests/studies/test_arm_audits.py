"""Audits of the arms of a carried-out run, against the same computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from warp_unlearning import shadow_audit
from warp_unlearning.studies.shadow_plan import Task
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
