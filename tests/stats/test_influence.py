from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warp_unlearning.errors import InputError
from warp_unlearning.stats.influence import area, area_influence, rate_influence, threshold
from warp_unlearning.stats.roc import roc

few_values = st.lists(st.integers(-3, 3), min_size=1, max_size=12)


def weighted_area(high: np.ndarray, low: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    won = sum(
        a[i] * b[j] * (float(high[i] > low[j]) + 0.5 * float(high[i] == low[j]))
        for i in range(len(high))
        for j in range(len(low))
    )
    return float(won / a.sum() / b.sum())


@given(high=few_values, low=few_values)
def test_the_area_is_that_of_the_curve(high: list[int], low: list[int]) -> None:
    assert area(high, low) == pytest.approx(roc(high, low).auc, abs=1e-12)
    assert area_influence(high, low).value == pytest.approx(roc(high, low).auc, abs=1e-12)


@settings(deadline=None, max_examples=30)
@given(high=few_values, low=few_values)
def test_the_influence_on_the_area_is_its_derivative_by_the_weight_of_a_score(high: list[int], low: list[int]) -> None:
    found = area_influence(high, low)
    step = 1e-6
    for sign, own in ((0, found.positive), (1, found.negative)):
        for i, psi in enumerate(own):
            ends = []
            for side in (step, -step):
                weights = [np.ones(len(high)), np.ones(len(low))]
                weights[sign][i] += side
                ends.append(weighted_area(np.array(high), np.array(low), *weights))
            assert psi == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-8)


@given(high=few_values, low=few_values, rate=st.sampled_from([0.0, 0.1, 0.25, 1 / 3, 0.5, 2 / 3, 0.9, 1.0]))
def test_the_rate_is_that_of_the_curve(high: list[int], low: list[int], rate: float) -> None:
    found = rate_influence(high, low, rate)
    assert found.value == pytest.approx(roc(high, low).tpr_at(rate), abs=1e-12)
    assert found.positive.sum() == pytest.approx(0, abs=1e-12)
    assert found.negative.sum() == pytest.approx(0, abs=1e-12)


def test_the_variance_of_a_rate_includes_that_of_its_threshold() -> None:
    """Independent normal scores: the sum of squared influences against the variance over many draws."""
    draw = np.random.default_rng(20)
    values, claimed = [], []
    for _ in range(400):
        found = rate_influence(draw.normal(1.5, 1, 600), draw.normal(0, 1, 800), 0.05)
        values.append(found.value)
        claimed.append(float((found.positive**2).sum() + (found.negative**2).sum()))
        fixed = float((found.positive**2).sum())
    assert np.mean(claimed) == pytest.approx(np.var(values), rel=0.2)
    assert fixed < 0.7 * np.var(values)


def test_a_negative_beyond_the_threshold_lowers_the_rate() -> None:
    draw = np.random.default_rng(21)
    low = draw.normal(size=200)
    found = rate_influence(draw.normal(1, 1, 100), low, 0.1)
    assert found.negative[low.argmax()] < 0 < found.negative[low.argmin()]


def test_a_threshold_lets_through_no_more_than_asked() -> None:
    ranked = np.sort(np.random.default_rng(20).normal(size=1000))
    for rate in (0.0, 0.001, 0.01, 0.07, 0.29, 0.999):
        passed = np.mean(ranked > threshold(ranked, rate))
        assert passed <= rate
        assert passed + 1e-3 > rate
    assert threshold(ranked, 1.0) == -np.inf
    with pytest.raises(InputError, match="no negative score"):
        threshold(np.array([]), 0.1)
