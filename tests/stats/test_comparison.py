from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from scipy import stats
from scipy.stats import ttest_1samp

from warp_unlearning.errors import InputError
from warp_unlearning.stats.clusters import TwoWay
from warp_unlearning.stats.comparison import compare, paired_reduction

POINTS = 1001


def table(base: float, other: float, correlation: float) -> TwoWay:
    """Standard errors and correlation as given, all of it from the points."""
    columns = np.array([[base**2, correlation * base * other], [correlation * base * other, other**2]])
    columns *= (POINTS - 1) / POINTS
    return TwoWay(np.zeros((2, 2)), columns, np.zeros((2, 2)), 16, POINTS, 1.0)


def fieller(b: float, w: float, sb: float, sw: float, correlation: float) -> tuple[float, float]:
    """Roots of (w − ρb)² = q² (sw² − 2ρ c + ρ² sb²), as a reduction 1 − ρ."""
    q2 = stats.t.isf(0.025, POINTS - 1) ** 2
    c = correlation * sb * sw
    roots = np.roots([b * b - q2 * sb * sb, -2 * (b * w - q2 * c), w * w - q2 * sw * sw])
    return float(1 - max(roots)), float(1 - min(roots))


@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_the_reduction_has_fiellers_interval(correlation: float) -> None:
    found = compare(0.7, 0.58, table(0.02, 0.03, correlation))
    low, high = fieller(0.2, 0.08, 0.02, 0.03, correlation)
    assert found.reduction is not None
    assert found.reduction.value == pytest.approx(0.6)
    assert (found.reduction.low, found.reduction.high) == (pytest.approx(low, abs=1e-9), pytest.approx(high, abs=1e-9))


def test_the_difference_is_paired() -> None:
    found = compare(0.7, 0.66, table(0.02, 0.02, 0.9))
    error = sqrt(2 * 0.02**2 * 0.1)
    assert found.difference.value == pytest.approx(0.04)
    assert found.difference.high - 0.04 == pytest.approx(stats.t.isf(0.025, POINTS - 1) * error)
    assert found.p_value == pytest.approx(2 * stats.t.sf(0.04 / error, POINTS - 1))
    assert "advantage reduced by" in str(found)


def test_no_reduction_is_stated_of_an_advantage_that_may_be_none() -> None:
    found = compare(0.52, 0.50, table(0.02, 0.02, 0.5))
    assert found.reduction is None
    assert "not distinguishable from chance" in found.note
    assert found.note in str(found)


def test_rates_are_measured_from_their_false_positive_rate() -> None:
    found = compare(0.11, 0.05, table(0.01, 0.01, 0.5), chance=0.01)
    assert found.reduction is not None
    assert found.reduction.value == pytest.approx(0.6)
    assert found.difference.value == pytest.approx(0.06)


def test_a_leak_turned_around_is_more_than_removed() -> None:
    found = compare(0.7, 0.4, table(0.01, 0.01, 0.5))
    assert found.reduction is not None
    assert found.reduction.value == pytest.approx(1.5)
    assert found.reduction.low > 1


@pytest.mark.parametrize("chance", [0.5, 1.0])
def test_the_interval_is_what_students_test_does_not_reject(chance: float) -> None:
    draw = np.random.default_rng(20)
    shared = draw.normal(size=8)
    base = 0.75 + 0.03 * shared + 0.01 * draw.normal(size=8)
    other = 0.62 + 0.02 * shared + 0.01 * draw.normal(size=8)
    found = paired_reduction(base, other, chance=chance)
    assert found is not None
    assert found.value == pytest.approx((base.mean() - other.mean()) / (base.mean() - chance))

    def p_value(share: float) -> float:
        return float(ttest_1samp(other - chance - (1 - share) * (base - chance), 0.0).pvalue)

    assert p_value(found.low) == pytest.approx(0.05, rel=1e-6)
    assert p_value(found.high) == pytest.approx(0.05, rel=1e-6)
    assert found.low < found.value < found.high
    assert p_value((found.low + found.high) / 2) > 0.05


def test_it_covers_and_pairing_makes_it_narrow() -> None:
    draw, covered, widths = np.random.default_rng(21), 0, []
    for _ in range(400):
        shared = 0.03 * draw.normal(size=6)
        base, other = 0.7 + shared, 0.6 + 0.5 * shared + 0.003 * draw.normal(size=6)
        found = paired_reduction(base, other)
        if found is None:
            continue
        covered += found.low <= 0.5 <= found.high
        widths.append(found.high - found.low)
    assert len(widths) > 390
    assert 0.92 <= covered / len(widths) <= 0.98
    # Alone, each mean is known to about 0.03 · 2.57/√6, a sixth of the advantage.
    assert np.median(widths) < 0.1


def test_what_cannot_be_stated() -> None:
    assert paired_reduction([0.7], [0.6]) is None
    assert paired_reduction([0.5, 0.6, 0.4], [0.5, 0.5, 0.5]) is None
    with pytest.raises(InputError, match="every pair"):
        paired_reduction([0.7, 0.7], [0.6])
