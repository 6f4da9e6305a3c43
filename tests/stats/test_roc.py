from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from warp_unlearning.errors import InputError
from warp_unlearning.stats.roc import roc

few_values = st.lists(st.integers(-3, 3), min_size=1, max_size=12)


@given(high=few_values, low=few_values)
def test_with_ties_the_area_is_the_share_of_pairs_won_half_of_it_for_a_draw(high: list[int], low: list[int]) -> None:
    won = sum(Fraction(a > b) + Fraction(a == b, 2) for a in high for b in low)
    assert roc(high, low).auc == pytest.approx(float(won / (len(high) * len(low))), abs=1e-12)


@given(high=few_values, low=few_values, rate=st.floats(0, 1))
def test_a_rate_is_the_best_any_threshold_reaches_within_it(high: list[int], low: list[int], rate: float) -> None:
    best = 0.0
    for threshold in [*high, *low, 100]:
        false = np.mean([s >= threshold for s in low])
        if false <= rate:
            best = max(best, float(np.mean([s >= threshold for s in high])))
    assert roc(high, low).tpr_at(rate) == best


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
    assert found.tpr_at(0.5) == 0.0
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
        roc([1.0], [0.0]).tpr_at(1.5)
