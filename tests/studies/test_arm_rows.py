"""The rows of arms: what a defended one adds to its base."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from warp_unlearning.studies.arm_rows import _extra, base_of
from warp_unlearning.studies.cell_settings import StudyArm


def test_the_extra_time_of_a_defence_has_an_interval_that_covers() -> None:
    draw, covered = np.random.default_rng(20), 0
    for _ in range(500):
        found = _extra(draw.gamma(30, 0.1, 40), draw.gamma(20, 0.1, 40))
        assert found is not None
        covered += found["low"] <= 0.5 <= found["high"]
    assert 0.92 <= covered / 500 <= 0.98
    assert _extra(np.array([2.0, 2.0]), np.array([1.0, 1.0])) == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert _extra(np.array([2.0]), np.array([1.0, 1.0])) is None


def test_a_defended_row_has_the_rise_of_privacy_and_every_row_its_rank_correlation(carried: Any) -> None:
    base, moved = carried.results["arms"][:2]
    rise = moved["reduction"]["privacy"]
    areas = [max(arm["all"]["auc"]["value"], 1 - arm["all"]["auc"]["value"]) for arm in (base, moved)]
    assert rise["value"] == pytest.approx((1 - areas[1]) / (1 - areas[0]) - 1)
    assert rise["low"] <= rise["value"] <= rise["high"]
    # All points are shown here, so that the figure's correlation is that of the row.
    risk = base["risk"]
    assert risk["correlation"]["value"] == pytest.approx(spearmanr(risk["gradient_norm"], risk["score"])[0])
    assert moved["gradient_test"]["reduction"] is None


def test_a_defended_arm_is_compared_with_its_method_alone() -> None:
    slow, fast = {"lr": 0.1}, {"lr": 0.2}
    plain = [StudyArm("ngp", slow), StudyArm("ngp", slow, "warp"), StudyArm("ngp", fast, "warp"), StudyArm("scrub", {})]
    assert [base_of(plain, i) for i in range(4)] == [None, 0, 0, None]
    two = [StudyArm("ngp", slow), StudyArm("ngp", fast), StudyArm("ngp", fast, "warp"), StudyArm("ngp", {}, "warp")]
    assert [base_of(two, i) for i in (2, 3)] == [1, None]
    # At the same value of what is swept, also where settings are tuned for the defence.
    swept = [StudyArm("ngp", slow, swept={"f": 1.0}), StudyArm("ngp", fast, swept={"f": 2.0})]
    assert base_of([*swept, StudyArm("ngp", fast, "warp", swept={"f": 1.0})], 2) == 0
    assert base_of([StudyArm("scrub", {}), StudyArm("ngp", {}, "warp")], 1) is None
