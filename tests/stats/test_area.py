from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from warp_unlearning.errors import InputError
from warp_unlearning.stats.area import MatchedArea, area_estimate, match, matched_area, standard_error
from warp_unlearning.stats.intervals import proportion

few_rows = st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 2)), min_size=0, max_size=8)


def weighted(scores: np.ndarray, forgot: np.ndarray, classes: np.ndarray, weight: np.ndarray) -> float:
    """The area by pairs, where each row counts as often as its weight says and class shares are those of the rows."""
    won = unseen = 0.0
    for c in np.unique(classes):
        mine, others = np.flatnonzero(forgot & (classes == c)), np.flatnonzero(~forgot & (classes == c))
        for j in others:
            unseen += weight[j] * len(mine) / len(others)
            wins = [weight[i] * ((scores[i] > scores[j]) + 0.5 * (scores[i] == scores[j])) for i in mine]
            won += weight[j] * sum(wins) / len(others)
    return float(won * forgot.sum() / unseen / weight[forgot].sum())


def test_the_golden_case() -> None:
    scores, classes = [3, 1, 1, 2, 4, 1, 2, 0], [0, 1, 0, 0, 0, 1, 1, 1]
    rows = match(np.arange(8) < 2, classes)
    found = matched_area(scores, rows)
    assert found.value == pytest.approx(0.583333, abs=1e-6)
    assert found.influence.sum() == pytest.approx(0)
    assert rows.sizes == (2.0, 6.0)


@settings(deadline=None, max_examples=50)
@given(rows=few_rows)
def test_the_area_is_that_of_all_pairs_and_influences_are_its_derivatives(rows: list[tuple[int, int]]) -> None:
    # A forgotten and an unseen row of every class beside the others, of which every second is forgotten.
    scores = np.array([s for s, _ in rows] + [1, 0, 0, 1, 0, 2], dtype=float)
    classes = np.array([c for _, c in rows] + [0, 1, 2, 0, 1, 2])
    forgot = np.array([i % 2 == 0 for i in range(len(rows))] + [True] * 3 + [False] * 3)
    found = matched_area(scores, match(forgot, classes))
    ones = np.ones(len(scores))
    assert found.value == pytest.approx(weighted(scores, forgot, classes, ones), abs=1e-12)
    assert found.influence[forgot].sum() == pytest.approx(0, abs=1e-12)
    assert found.influence[~forgot].sum() == pytest.approx(0, abs=1e-12)
    for i in range(len(scores)):
        step = np.where(np.arange(len(scores)) == i, 1e-6, 0)
        slope = weighted(scores, forgot, classes, ones + step) - weighted(scores, forgot, classes, ones - step)
        assert found.influence[i] == pytest.approx(slope / 2e-6, abs=1e-6)


def test_the_error_is_the_spread_of_repeated_areas() -> None:
    rng = np.random.default_rng(1)
    values, errors = [], []
    for _ in range(600):
        classes = np.r_[rng.integers(3, size=100), np.arange(240) % 3]
        rows = match(np.arange(340) < 100, classes)
        found = matched_area(rng.normal(size=340) + 0.7 * rows.forgot + classes, rows)
        values.append(found.value)
        errors.append(standard_error(found.influence, rows)[0])
    assert np.mean(values) == pytest.approx(norm.cdf(0.7 / np.sqrt(2)), abs=0.005)
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.08)


@pytest.mark.parametrize(("forgotten", "unseen", "area"), [(10, 100, 0.5), (40, 200, 0.75), (20, 400, 0.95)])
def test_intervals_cover_the_true_area(forgotten: int, unseen: int, area: float) -> None:
    rng, n, inside = np.random.default_rng(2), forgotten + unseen, []
    rows = match(np.arange(n) < forgotten, np.zeros(n))
    for _ in range(800):
        scores = rng.normal(size=rows.forgot.size) + norm.ppf(area) * np.sqrt(2) * rows.forgot
        found, _ = area_estimate(matched_area(scores, rows), rows)
        inside.append(found.low <= area <= found.high)
    assert np.mean(inside) > 0.93


def test_one_class_has_the_error_of_two_samples() -> None:
    rng = np.random.default_rng(4)
    mine, others = rng.normal(size=40) + 0.5, rng.normal(size=60)
    rows = match(np.arange(100) < 40, np.zeros(100))
    won = (mine[:, None] > others).astype(float)
    parts = won.mean(1).var(ddof=1) / 40, won.mean(0).var(ddof=1) / 60
    error, freedom = standard_error(matched_area(np.r_[mine, others], rows).influence, rows)
    assert error == pytest.approx(np.sqrt(sum(parts)))
    assert freedom == pytest.approx(sum(parts) ** 2 / (parts[0] ** 2 / 39 + parts[1] ** 2 / 59))


def test_intervals_are_within_those_of_a_proportion() -> None:
    rows = match(np.arange(10) < 5, np.zeros(10))
    found, exact = area_estimate(MatchedArea(0.8, np.zeros(10)), rows)[0], proportion(4, 5)
    assert exact.low <= found.low < found.high <= exact.high
    wide = area_estimate(MatchedArea(0.8, np.where(rows.forgot, 0.3, -0.3)), rows)[0]
    assert (wide.low, wide.high) == pytest.approx((exact.low, exact.high))


def test_intervals_of_few_rows() -> None:
    rows = match(np.arange(220) < 20, np.zeros(220))
    found, error = area_estimate(MatchedArea(0.5, np.zeros(220)), rows)  # the spread of exponential scores at least
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.371, 0.629), abs=1e-3)
    assert error == pytest.approx(np.sqrt(1 / 12 / 20))
    for sign, hits in ((1, 20), (-1, 0)):
        found, exact = area_estimate(matched_area(sign * rows.forgot, rows), rows)[0], proportion(hits, 20)
        assert (found.value, found.low, found.high) == pytest.approx((exact.value, exact.low, exact.high))
    one = match(np.arange(41) < 1, np.zeros(41))
    found, error = area_estimate(matched_area(-np.arange(41), one), one)
    assert (found.value, found.low, found.high, error) == (1.0, 0.0, 1.0, np.inf)


def test_equal_scores_are_void_and_half_is_not() -> None:
    rows = match([True, True, False, False], [0, 1, 0, 1])
    assert matched_area([5, 3, 5, 3], rows).void
    assert not matched_area([1, 0, 0, 1], rows).void


def test_unseen_rows_are_weighted_by_the_forgotten_ones_of_their_class() -> None:
    rows = match([True, True, True, False, False, False], [0, 0, 1, 0, 1, 1])
    assert rows.unseen_mean(np.array([9, 9, 9, 1, 0, 0.5])) == pytest.approx(2 / 3 * 1 + 1 / 3 * 0.25)


def test_rows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="leave out the rows of such classes"):
        match([True, False, True], [0, 0, 1])
    with pytest.raises(InputError, match="3 rows have 2 classes"):
        match([True, False, True], [0, 0])
    with pytest.raises(InputError, match="3 scores were given for 2 rows"):
        matched_area([1, 2, 3], match([True, False], [0, 0]))
