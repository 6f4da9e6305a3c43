from __future__ import annotations

import json
from math import isnan, sqrt

import numpy as np
import pytest
from scipy import stats

from warp_unlearning.stats.clusters import TwoWay
from warp_unlearning.stats.comparison import advantage_reduction, compare

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
    assert json.loads(json.dumps(found.summary()))["reduction"] is None


def test_rates_are_measured_from_their_false_positive_rate() -> None:
    found = compare(0.11, 0.05, table(0.01, 0.01, 0.5), chance=0.01)
    assert found.reduction is not None
    assert found.reduction.value == pytest.approx(0.6)
    assert found.summary()["difference"]["value"] == pytest.approx(0.06)


def test_a_leak_turned_around_is_more_than_removed() -> None:
    found = compare(0.7, 0.4, table(0.01, 0.01, 0.5))
    assert found.reduction is not None
    assert found.reduction.value == pytest.approx(1.5)
    assert found.reduction.low > 1


def test_the_formula() -> None:
    assert advantage_reduction(0.545, 0.516) == pytest.approx(0.6444, abs=1e-4)
    assert advantage_reduction(0.11, 0.05, chance=0.01) == pytest.approx(0.6)
    assert isnan(advantage_reduction(0.5, 0.6))
