"""What attacks on pairs of models leave in the row of an arm, alone and beside its base."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from warp_unlearning.report.schema import rate_at
from warp_unlearning.report.schema_shadow import GradientTest
from warp_unlearning.stats.comparison import paired_reduction
from warp_unlearning.stats.intervals import mean
from warp_unlearning.studies.arm_pairs import gradient_difference, gradient_reduction, gradient_test, strongest_attack
from warp_unlearning.studies.shadow_scores import ArmScores
from warp_unlearning.studies.study_results import _pair_attacks

NONE: Any = np.empty((0, 3))


def attacked(areas: dict[tuple[int, int], float]) -> ArmScores:
    """An arm of which only attacks on pairs are known."""

    def row(area: float) -> dict[str, Any]:
        tpr = {"value": area / 2, "low": 0.0, "high": 1.0}
        rates = [{"fpr": 0.05, "resolved": True, "negatives": 900, "tpr": tpr}]
        return {"name": "gradient difference", "auc": {"value": area, "low": area, "high": area}, "rates": rates}

    pairs = tuple({"rows": [row(area)]} for area in areas.values())
    return ArmScores(NONE, NONE, NONE, NONE, NONE, {}, NONE, NONE, pairs, tuple(areas), 0)


def test_the_gradient_test_is_paired_by_shadow_and_set() -> None:
    base = attacked({(0, 0): 0.70, (1, 0): 0.72, (2, 0): 0.69})
    defended = attacked({(2, 0): 0.598, (0, 0): 0.602, (1, 0): 0.611})
    found, expected = gradient_reduction(defended, base), paired_reduction([0.7, 0.72, 0.69], [0.602, 0.611, 0.598])
    assert found is not None
    assert expected is not None
    assert (found["value"], found["low"], found["high"]) == (expected.value, expected.low, expected.high)
    lower = gradient_difference(defended, base)
    expected = mean([0.7 - 0.602, 0.72 - 0.611, 0.69 - 0.598])
    assert lower is not None
    assert (lower["value"], lower["low"], lower["high"]) == pytest.approx((expected.value, expected.low, expected.high))


def test_only_pairs_that_both_arms_have_are_compared() -> None:
    before, after = {(0, 0): 0.70, (1, 0): 0.72, (2, 0): 0.69}, {(0, 0): 0.602, (1, 0): 0.611, (2, 0): 0.598}
    base, defended = attacked({**before, (5, 0): 0.9}), attacked({**after, (3, 0): 0.2})
    assert gradient_reduction(defended, base) == gradient_reduction(attacked(after), attacked(before))
    assert gradient_difference(defended, base) == gradient_difference(attacked(after), attacked(before))
    assert gradient_reduction(defended, base) is not None
    for few in (attacked({(0, 0): 0.6}), attacked({(7, 0): 0.6, (8, 0): 0.6})):
        assert gradient_reduction(few, base) is None
        assert gradient_difference(few, base) is None


def test_areas_below_one_half_are_turned_around() -> None:
    base = attacked({(0, 0): 0.30, (1, 0): 0.28, (2, 0): 0.31})
    defended = attacked({(0, 0): 0.60, (1, 0): 0.61, (2, 0): 0.59})
    found = gradient_reduction(defended, base)
    assert found is not None
    assert found["value"] == pytest.approx(1 - 0.1 / (0.5 - np.mean([0.30, 0.28, 0.31])))
    lower = gradient_difference(defended, base)
    assert lower is not None
    assert lower["value"] == pytest.approx(np.mean([0.70, 0.72, 0.69]) - 0.6)


def test_what_several_pairs_leave_is_read_back() -> None:
    base = attacked({(0, 0): 0.70, (1, 0): 0.72})
    written = gradient_test(base, None)
    assert written is not None
    assert (written["difference"], written["reduction"]) == (None, None)
    read = GradientTest.model_validate(written)
    assert read.pairs == 2
    assert read.auc.value == pytest.approx(0.71)
    rate = rate_at(read.rates, 0.05)
    assert rate is not None
    assert rate.tpr is not None
    assert rate.tpr.value == pytest.approx(0.355)
    old = GradientTest.model_validate({**written, "rates": None})
    assert (old.pairs, old.rates) == (2, None)


def test_every_attack_has_its_mean_area_and_rates() -> None:
    (found,) = _pair_attacks(attacked({(0, 0): 0.70, (1, 0): 0.72, (2, 0): 0.75}))
    assert (found["name"], found["pairs"]) == ("gradient difference", 3)
    assert found["auc"]["value"] == pytest.approx(np.mean([0.70, 0.72, 0.75]))
    assert [(rate["fpr"], rate["resolved"]) for rate in found["rates"]] == [(0.05, True)]
    assert found["rates"][0]["tpr"]["value"] == pytest.approx(np.mean([0.35, 0.36, 0.375]))
    (alone,) = _pair_attacks(attacked({(0, 0): 0.7}))
    assert alone["rates"][0]["tpr"] == {"value": 0.35, "low": 0.0, "high": 1.0}


def test_a_strength_is_at_most_1() -> None:
    found = strongest_attack(attacked({(0, 0): 0.80, (1, 0): 0.95}))
    assert found is not None
    assert found["strength"]["value"] == pytest.approx(0.875)
    assert (found["strength"]["low"], found["strength"]["high"]) == (0.5, 1.0)
