"""Fields of an audit's rows that compare a defence with its base, and risks with gradient norms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from warp_unlearning.attacks.membership.audit import Audit, Observations
from warp_unlearning.report.fields import Field
from warp_unlearning.report.shadow_results import _gradient_test as read_gradient_test
from warp_unlearning.stats.intervals import mean
from warp_unlearning.stats.paired_share import paired_reduction
from warp_unlearning.studies.shadow_results import (
    _gradient_test,
    _strongest,
    gradient_difference,
    gradient_reduction,
    risk_correlation,
)
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
    written = _gradient_test(base, None)
    assert written is not None
    assert (written["difference"], written["reduction"]) == (None, None)
    read = read_gradient_test(Field(written, "results"))
    assert read.pairs == 2
    assert read.auc.value == pytest.approx(0.71)
    rate = read.rate(0.05)
    assert rate is not None
    assert rate.tpr is not None
    assert rate.tpr.value == pytest.approx(0.355)
    old = read_gradient_test(Field({**written, "rates": None}, "results"))
    assert (old.pairs, old.rates) == (2, ())


def test_every_attack_has_its_mean_area_and_rates() -> None:
    (found,) = _pair_attacks(attacked({(0, 0): 0.70, (1, 0): 0.72, (2, 0): 0.75}))
    assert (found["name"], found["pairs"]) == ("gradient difference", 3)
    assert found["auc"]["value"] == pytest.approx(np.mean([0.70, 0.72, 0.75]))
    assert [(rate["fpr"], rate["resolved"]) for rate in found["rates"]] == [(0.05, True)]
    assert found["rates"][0]["tpr"]["value"] == pytest.approx(np.mean([0.35, 0.36, 0.375]))
    (alone,) = _pair_attacks(attacked({(0, 0): 0.7}))
    assert alone["rates"][0]["tpr"] == {"value": 0.35, "low": 0.0, "high": 1.0}


def test_a_strength_is_at_most_1() -> None:
    found = _strongest(attacked({(0, 0): 0.80, (1, 0): 0.95}))
    assert found is not None
    assert found["strength"]["value"] == pytest.approx(0.875)
    assert (found["strength"]["low"], found["strength"]["high"]) == (0.5, 1.0)


def made(norms: np.ndarray, scores: np.ndarray) -> Audit:
    """An audit whose positives are all cells of a table of shadows and points."""
    rows, columns = (index.ravel().astype(np.int32) for index in np.indices(scores.shape))
    observed = Observations(scores.ravel(), columns, rows)
    return Audit(observed, observed, np.arange(len(scores)), scores.shape[1], 1.0, "pooled")


def table(draw: np.random.Generator, shadows: int, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Norms and scores that both owe to the point, scores to the shadow as well."""
    common = draw.normal(size=(1, points))
    norms = np.exp(common + 0.3 * draw.normal(size=(shadows, points)))
    shift = 0.4 * draw.normal(size=(shadows, 1))
    return norms, 0.7 * common + draw.normal(size=(shadows, points)) + shift


def test_the_correlation_is_spearmans_and_a_bootstrap_over_points_gives_its_interval() -> None:
    draw = np.random.default_rng(20)
    norms, _ = table(draw, 6, 150)
    scores = np.log(norms) + draw.normal(size=norms.shape) + draw.normal(size=(1, 150))
    norms[0, :5] = np.nan
    found = risk_correlation(made(norms, scores), norms.ravel())
    assert found is not None
    known = np.isfinite(norms)
    assert found["value"] == pytest.approx(spearmanr(norms[known], scores[known])[0])
    boot = []
    for _ in range(300):
        pick = draw.integers(150, size=150)
        x, y = norms[:, pick], scores[:, pick]
        boot.append(spearmanr(x[np.isfinite(x)], y[np.isfinite(x)])[0])
    low, high = np.quantile(boot, [0.025, 0.975])
    assert found["high"] - found["low"] == pytest.approx(high - low, rel=0.25)


def test_the_interval_of_the_correlation_covers_where_shadows_and_points_move_together() -> None:
    draw = np.random.default_rng(21)
    truth = np.mean([spearmanr(*(part.ravel() for part in table(draw, 8, 60)))[0] for _ in range(400)])
    covered = 0
    for _ in range(200):
        norms, scores = table(draw, 8, 60)
        found = risk_correlation(made(norms, scores), norms.ravel())
        assert found is not None
        covered += found["low"] <= truth <= found["high"]
    assert 0.91 <= covered / 200 <= 0.995


def test_there_may_be_nothing_to_correlate() -> None:
    same = np.ones((4, 10))
    assert risk_correlation(made(same, np.random.default_rng(0).normal(size=(4, 10))), same.ravel()) is None
