from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import roc_auc_score, roc_curve

from warp_unlearning.errors import InputError
from warp_unlearning.stats.intervals import proportion
from warp_unlearning.stats.roc import Rate, area, area_influence, independent_rate, rate_influence, roc, threshold

few_values = st.lists(st.integers(-3, 3), min_size=1, max_size=12)


@given(high=few_values, low=few_values)
def test_with_ties_the_area_is_the_share_of_pairs_won_half_of_it_for_a_draw(high: list[int], low: list[int]) -> None:
    won = sum(Fraction(a > b) + Fraction(a == b, 2) for a in high for b in low)
    assert roc(high, low).auc == pytest.approx(float(won / (len(high) * len(low))), abs=1e-12)


@given(high=few_values, low=few_values, rate=st.floats(0, 1) | st.sampled_from([0.1, 1 / 3, 0.5, 2 / 3]))
def test_a_rate_is_the_best_any_threshold_reaches_within_it(high: list[int], low: list[int], rate: float) -> None:
    best = 0.0
    for limit in [*high, *low, 100]:
        false = np.mean([s >= limit for s in low])
        if false <= rate:
            best = max(best, float(np.mean([s >= limit for s in high])))
    found = rate_influence(high, low, rate)
    assert found.value == best
    assert found.positive.sum() == pytest.approx(0, abs=1e-12)
    assert found.negative.sum() == pytest.approx(0, abs=1e-12)


@given(high=few_values, low=few_values)
def test_balanced_accuracy_is_that_of_the_best_threshold(high: list[int], low: list[int]) -> None:
    best = max(0.5 * (np.mean([s >= t for s in high]) + np.mean([s < t for s in low])) for t in [*high, *low, 100])
    assert roc(high, low).balanced_accuracy == pytest.approx(best, abs=1e-12)


def test_it_equals_scikit_learn_where_there_are_no_ties() -> None:
    draw = np.random.default_rng(0)
    high, low = draw.normal(0.5, 1, 300), draw.normal(0, 1, 500)
    labels = np.repeat([1, 0], [300, 500])
    found = roc(high, low)
    assert found.auc == pytest.approx(roc_auc_score(labels, np.concatenate([high, low])), abs=1e-12)
    fpr, tpr, _ = roc_curve(labels, np.concatenate([high, low]), drop_intermediate=False)
    np.testing.assert_allclose(found.fpr, fpr)
    np.testing.assert_allclose(found.tpr, tpr)


def test_equal_scores_know_nothing() -> None:
    found = roc(np.ones(5), np.ones(7))
    assert found.auc == 0.5
    assert rate_influence(np.ones(5), np.ones(7), 0.5).value == 0.0
    assert found.balanced_accuracy == 0.5


def test_a_rate_is_resolved_by_ten_negatives() -> None:
    found = roc(np.ones(3), np.arange(1000.0))
    assert found.resolvable(0.01)
    assert not found.resolvable(0.009)


@pytest.mark.parametrize(
    ("high", "low", "message"),
    [
        ([], [1.0], "no positive score"),
        ([1.0], [], "no negative score"),
        ([1.0, float("nan")], [1.0], "positive score 1 of 2 is nan"),
        ([1.0], [float("inf")], "negative score 0 of 1 is inf"),
    ],
)
def test_what_has_no_curve_is_refused(high: list[float], low: list[float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        roc(high, low)


def test_a_rate_outside_zero_and_one_is_refused() -> None:
    with pytest.raises(InputError, match=r"rate is 1\.5"):
        rate_influence([1.0], [0.0], 1.5)


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


def test_an_unresolved_rate_is_no_number() -> None:
    found = independent_rate(np.arange(50.0), np.arange(999.0), 0.01)
    assert not found.resolved
    assert str(found) == "TPR at 1 % FPR: unresolved (999 negatives, 1,000 needed)"
    assert found.summary() == {"fpr": 0.01, "resolved": False, "negatives": 999, "tpr": None}
    assert "infinitely many" in str(Rate(0.0, None, 5))


def test_a_resolved_rate_reaches_at_least_as_far_as_the_exact_interval() -> None:
    found = independent_rate(np.arange(50.0) * 30, np.arange(1000.0), 0.01, level=0.9)
    exact = proportion(17, 50, level=0.9)
    assert found.tpr is not None
    assert (found.tpr.value, found.resolved, found.needed) == (0.34, True, 1000)
    assert found.tpr.low <= exact.low < exact.high <= found.tpr.high
    assert str(found) == f"TPR at 1 % FPR: {found.tpr}"


def test_no_and_all_positives_have_the_exact_interval() -> None:
    assert independent_rate(np.zeros(20), np.arange(1.0, 301.0), 0.05).tpr == proportion(0, 20)
    assert independent_rate(np.full(20, 1e6), np.arange(300.0), 0.05).tpr == proportion(20, 20)


@pytest.mark.parametrize(("positives", "negatives"), [(126, 226), (1000, 200)])
def test_an_upper_end_is_seldom_below_the_truth(positives: int, negatives: int) -> None:
    draw, truth = np.random.default_rng(20), norm.sf(norm.isf(0.05) - 1.5)
    found = [
        independent_rate(draw.normal(1.5, 1, positives), draw.normal(0, 1, negatives), 0.05).tpr for _ in range(400)
    ]
    assert np.mean([e.high < truth for e in found if e is not None]) < 0.05
    assert np.mean([e.low <= truth <= e.high for e in found if e is not None]) > 0.9
