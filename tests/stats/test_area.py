from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from warp_unlearning.errors import InputError
from warp_unlearning.stats.area import area_difference, area_estimate, independent_area, match, matched_area, spread_of
from warp_unlearning.stats.intervals import Estimate, proportion
from warp_unlearning.stats.roc import Influence, area_influence

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
    assert (found.positive.sum(), found.negative.sum()) == pytest.approx((0, 0))
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
    influence = np.empty(len(scores))
    influence[forgot], influence[~forgot] = found.positive, found.negative
    assert (found.positive.sum(), found.negative.sum()) == pytest.approx((0, 0), abs=1e-12)
    for i in range(len(scores)):
        step = np.where(np.arange(len(scores)) == i, 1e-6, 0)
        slope = weighted(scores, forgot, classes, ones + step) - weighted(scores, forgot, classes, ones - step)
        assert influence[i] == pytest.approx(slope / 2e-6, abs=1e-6)


def test_the_error_is_the_spread_of_repeated_areas() -> None:
    rng = np.random.default_rng(1)
    values, errors = [], []
    for _ in range(600):
        classes = np.r_[rng.integers(3, size=100), np.arange(240) % 3]
        rows = match(np.arange(340) < 100, classes)
        found = matched_area(rng.normal(size=340) + 0.7 * rows.forgot + classes, rows)
        values.append(found.value)
        errors.append(spread_of(found, rows).error)
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
    found = spread_of(matched_area(np.r_[mine, others], rows), rows)
    assert found.error == pytest.approx(np.sqrt(sum(parts)))
    assert found.freedom == pytest.approx(sum(parts) ** 2 / (parts[0] ** 2 / 39 + parts[1] ** 2 / 59))


def test_intervals_are_within_those_of_a_proportion() -> None:
    found, exact = area_estimate(Influence(0.8, np.zeros(5), np.zeros(5)))[0], proportion(4, 5)
    assert exact.low <= found.low < found.high <= exact.high
    wide = area_estimate(Influence(0.8, np.full(5, 0.3), np.full(5, -0.3)))[0]
    assert (wide.low, wide.high) == pytest.approx((exact.low, exact.high))


def test_intervals_of_few_rows() -> None:
    rows = match(np.arange(220) < 20, np.zeros(220))
    found, error = area_estimate(
        Influence(0.5, np.zeros(20), np.zeros(200))
    )  # the spread of exponential scores at least
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


def delong_variance(positive: np.ndarray, negative: np.ndarray) -> float:
    """By the definition: variances of the placements, in loops."""
    wins = np.array([[1.0 if p > n else 0.5 if p == n else 0.0 for n in negative] for p in positive])
    return wins.mean(1).var(ddof=1) / len(positive) + wins.mean(0).var(ddof=1) / len(negative)


@given(
    st.lists(st.integers(0, 6), min_size=3, max_size=8),
    st.lists(st.integers(0, 6), min_size=3, max_size=8),
)
def test_the_difference_to_a_constant_has_delongs_variance(positive: list[int], negative: list[int]) -> None:
    constant = area_influence(np.zeros(len(positive)), np.zeros(len(negative)))
    found = area_difference(area_influence(positive, negative), constant, level=0.95)
    expected = delong_variance(np.array(positive), np.array(negative))
    if expected == 0:
        assert found.low == found.value == found.high
        return
    # The half width is the standard error times a quantile of Student's t, which lies between these.
    reach = max(found.high - found.value, found.value - found.low)
    assert 1.95 * np.sqrt(expected) <= reach + 1e-9 or found.high == 1.0 or found.low == -1.0
    assert reach <= 12.71 * np.sqrt(expected) + 1e-9


@pytest.mark.parametrize(("shift", "sizes"), [(0.0, (20, 60)), (0.5, (40, 40)), (1.5, (50, 200)), (3.0, (60, 60))])
def test_the_interval_covers_the_true_area(shift: float, sizes: tuple[int, int]) -> None:
    draw, truth = np.random.default_rng(20), norm.cdf(shift / np.sqrt(2))
    covered = 0
    for _ in range(1500):
        found = independent_area(draw.normal(shift, 1, sizes[0]), draw.normal(0, 1, sizes[1]))
        covered += found.low <= truth <= found.high
    assert 0.93 <= covered / 1500 <= 0.99


def test_the_paired_interval_covers_the_true_difference_and_is_narrower() -> None:
    draw, covered, widths = np.random.default_rng(21), 0, []
    truth = norm.cdf(1 / np.sqrt(2)) - norm.cdf(0.6 / np.sqrt(2))
    for _ in range(800):
        noise = [draw.normal(size=n) for n in (60, 80)]
        own = [[draw.normal(size=n) for n in (60, 80)] for _ in range(2)]
        areas = []
        for shift, mine in zip((1.0, 0.6), own, strict=True):
            scores = [np.sqrt(0.9) * a + np.sqrt(0.1) * b for a, b in zip(noise, mine, strict=True)]
            areas.append(area_influence(scores[0] + shift, scores[1]))
        found = area_difference(*areas)
        covered += found.low <= truth <= found.high
        widths.append(found.high - found.low)
    assert 0.93 <= covered / 800 <= 0.97
    assert np.mean(widths) < 0.1


def test_sets_that_do_not_overlap_have_an_interval() -> None:
    apart = independent_area(np.arange(10.0) + 100, np.arange(40.0))
    assert apart.value == apart.high == 1.0
    assert apart.low == pytest.approx(0.6915, abs=1e-4)
    assert independent_area(np.arange(10.0), np.arange(40.0) + 100).high == pytest.approx(1 - 0.6915, abs=1e-4)


def test_equal_scores_say_nothing() -> None:
    equal = independent_area(np.ones(5), np.ones(7))
    assert (equal.value, equal.low, equal.high) == (0.5, 0.0, 1.0)


def test_what_is_refused() -> None:
    assert independent_area([1.0], [1.0, 2.0, 3.0]) == Estimate(1 / 6, 0.0, 1.0)
    with pytest.raises(InputError, match="nan"):
        independent_area([1.0, np.nan], [1.0, 2.0])
    with pytest.raises(InputError, match="same examples"):
        area_difference(area_influence([1.0, 2.0], [0.0, 1.0]), area_influence([1.0, 2.0], [0.0, 1.0, 2.0]))


@pytest.mark.parametrize("count", [2, 3, 5, 8])
@pytest.mark.parametrize("shift", [0.0, 1.5])
def test_few_scores_have_wide_intervals(count: int, shift: float) -> None:
    draw, truth = np.random.default_rng(23), norm.cdf(shift / np.sqrt(2))
    found = [independent_area(draw.normal(shift, 1, count), draw.normal(0, 1, 226)) for _ in range(400)]
    assert np.mean([e.low <= truth <= e.high for e in found]) > 0.96


def test_a_set_that_is_almost_apart_is_hardly_less_sure_than_one_that_is() -> None:
    """The interval grows from that of an area of 1 as scores begin to overlap, and stays clear of ½."""
    others, lows = np.arange(250.0), []
    for lowest in (300.0, 249.5, 248.5, 247.5):
        found = independent_area([lowest, 301, 302, 303, 304, 305, 306, 307], others)
        assert independent_area(-others, -np.array([lowest, 301, 302, 303, 304, 305, 306, 307])) == found
        lows.append(found.low)
    assert lows[0] == lows[1] == pytest.approx(0.025 ** (1 / 8))
    assert lows[1] > lows[2] > lows[3] > 0.6
    assert independent_area([247.5, *range(300, 307)], others, level=0.999).low > 0.35


@given(st.integers(2, 12), st.integers(2, 12), st.integers(0, 10_000))
def test_no_interval_reaches_further_than_that_of_as_many_draws_right_or_wrong(m: int, n: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    found = independent_area(draw.normal(2, 1, m), draw.normal(0, 1, n))
    right = found.value * min(m, n)
    if right == int(right):
        exact = proportion(int(right), min(m, n))
        assert found.low >= exact.low - 1e-12
        assert found.high <= exact.high + 1e-12


@pytest.mark.parametrize(("sizes", "wrong"), [((8, 226), 0.02), ((8, 226), 0.1), ((5, 60), 0.3)])
def test_scores_of_the_largest_variance_are_covered(sizes: tuple[int, int], wrong: float) -> None:
    """A share of the positives lies below everything, the others above: the variance is A(1 − A)/n."""
    draw, covered = np.random.default_rng(24), 0
    for _ in range(500):
        positive = np.where(draw.random(sizes[0]) < wrong, -50, 50) + draw.normal(0, 1, sizes[0])
        found = independent_area(positive, draw.normal(0, 1, sizes[1]))
        covered += found.low <= 1 - wrong <= found.high
    assert covered / 500 > 0.93
