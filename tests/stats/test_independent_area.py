"""Areas of independent scores: against a bootstrap-free oracle, by coverage, and at the edges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from warp_unlearning.errors import InputError
from warp_unlearning.stats.independent_area import area_difference, area_p_value, independent_area
from warp_unlearning.stats.influence import area_influence
from warp_unlearning.stats.intervals import proportion


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


def test_p_values_are_uniform_without_a_difference_and_small_with_one() -> None:
    draw = np.random.default_rng(22)
    values = [area_p_value(draw.normal(size=30), draw.normal(size=50)) for _ in range(1000)]
    assert abs(np.mean(np.array(values) < 0.05) - 0.05) < 0.02
    assert area_p_value(draw.normal(2, 1, 30), draw.normal(size=50)) < 1e-6
    assert area_p_value(-draw.normal(2, 1, 30), draw.normal(size=50)) < 1e-6


def test_sets_that_do_not_overlap_have_an_interval() -> None:
    apart = independent_area(np.arange(10.0) + 100, np.arange(40.0))
    assert apart.value == apart.high == 1.0
    assert apart.low == pytest.approx(0.6915, abs=1e-4)
    assert independent_area(np.arange(10.0), np.arange(40.0) + 100).high == pytest.approx(1 - 0.6915, abs=1e-4)


def test_equal_scores_say_nothing() -> None:
    equal = independent_area(np.ones(5), np.ones(7))
    assert (equal.value, equal.low, equal.high) == (0.5, 0.0, 1.0)
    assert area_p_value(np.ones(5), np.ones(7)) == 1.0


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="1 positive and 3 negative scores"):
        independent_area([1.0], [1.0, 2.0, 3.0])
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
