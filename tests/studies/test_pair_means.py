"""Means over pairs of models, against the same by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from warp_unlearning.stats.area import independent_area
from warp_unlearning.studies.pair_means import mean_area, mean_rates, share_mean

FPRS = (0.001, 0.01, 0.05)


def rate(fpr: float, tpr: float | None, negatives: int = 1000) -> dict[str, Any]:
    ends = None if tpr is None else {"value": tpr, "low": max(tpr - 0.01, 0.0), "high": min(tpr + 0.02, 1.0)}
    return {"fpr": fpr, "negatives": negatives, "resolved": tpr is not None, "tpr": ends}


def row(area: float, *rates: dict[str, Any]) -> dict[str, Any]:
    return {"name": "a", "auc": {"value": area, "low": area - 0.1, "high": area + 0.1}, "rates": list(rates)}


def test_a_rate_is_the_mean_of_each_pair_s_own_with_students_interval() -> None:
    values = [0.30, 0.34, 0.37, 0.29]
    (found,) = mean_rates([row(0.6, rate(0.05, v)) for v in values])
    reach = stats.t.ppf(0.975, 3) * np.std(values, ddof=1) / 2
    assert (found["fpr"], found["resolved"]) == (0.05, True)
    assert found["tpr"]["value"] == pytest.approx(np.mean(values))
    assert found["tpr"]["low"] == pytest.approx(np.mean(values) - reach)
    assert found["tpr"]["high"] == pytest.approx(np.mean(values) + reach)


def test_a_rate_is_resolved_only_where_it_is_in_every_pair_with_the_fewest_negatives() -> None:
    first = row(0.6, rate(0.001, None, 1100), rate(0.01, 0.2, 1100), rate(0.05, 0.3, 1100))
    second = row(0.6, rate(0.001, None, 900), rate(0.01, None, 900), rate(0.05, 0.4, 900))
    found = mean_rates([first, second])
    assert [(r["fpr"], r["resolved"], r["negatives"]) for r in found] == [
        (0.001, False, 900),
        (0.01, False, 900),
        (0.05, True, 900),
    ]
    assert found[1]["tpr"] is None
    assert found[2]["tpr"]["value"] == pytest.approx(0.35)


def test_rates_that_one_pair_lacks_are_left_out() -> None:
    found = mean_rates([row(0.6, rate(0.01, 0.1), rate(0.05, 0.2)), row(0.6, rate(0.05, 0.3))])
    assert [r["fpr"] for r in found] == [0.05]
    assert found[0]["tpr"]["value"] == pytest.approx(0.25)


def test_of_one_pair_its_own_numbers_stand() -> None:
    alone = row(0.6, rate(0.01, 0.1), rate(0.05, None))
    assert mean_rates([alone]) == alone["rates"]
    assert mean_area([alone]) == alone["auc"]


def test_rates_that_are_all_equal_are_no_surer_than_the_pairs_themselves() -> None:
    (found,) = mean_rates([row(0.6, rate(0.01, 0.0)), row(0.6, rate(0.01, 0.0))])
    assert found["tpr"] == {"value": 0.0, "low": 0.0, "high": 0.02}


def test_areas_end_at_0_and_1() -> None:
    found = mean_area([row(0.9), row(0.98)])
    assert (found["value"], found["high"]) == (pytest.approx(0.94), 1.0)
    assert found["low"] == pytest.approx(0.94 - stats.t.ppf(0.975, 1) * 0.04)
    assert share_mean([0.02, 0.1]).low == 0.0


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8))
def test_intervals_hold_the_mean_and_stay_between_0_and_1(values: list[float]) -> None:
    (found,) = mean_rates([row(0.5, rate(0.05, v)) for v in values])
    tpr = found["tpr"]
    assert 0 <= tpr["low"] <= tpr["value"] + 1e-12
    assert tpr["value"] - 1e-12 <= tpr["high"] <= 1


def pair(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": value, "low": low, "high": high}


def test_pairs_that_agree_by_chance_are_no_surer_than_their_own_errors() -> None:
    found = share_mean([pair(0.561, 0.48, 0.64), pair(0.5611, 0.48, 0.64)])
    assert found.value - found.low == pytest.approx(np.hypot(0.081, 0.0811) / 2)
    assert found.high - found.value == pytest.approx(np.hypot(0.079, 0.0789) / 2)
    ends = mean_area([{"auc": pair(0.561, 0.48, 0.64)}, {"auc": pair(0.5611, 0.48, 0.64)}])
    assert ends == {"value": found.value, "low": found.low, "high": found.high}
    (rate_found,) = mean_rates([row(0.6, rate(0.05, 0.2)), row(0.6, rate(0.05, 0.2001))])
    assert rate_found["tpr"]["high"] - rate_found["tpr"]["value"] == pytest.approx(0.02 / np.sqrt(2))


def test_errors_within_pairs_are_taken_to_the_level_asked_for() -> None:
    of = [pair(0.5, 0.4, 0.6), pair(0.5, 0.4, 0.6)]
    reach = 0.1 / np.sqrt(2) * stats.norm.ppf(0.9995) / stats.norm.ppf(0.975)
    assert share_mean(of, level=0.999).high == pytest.approx(0.5 + reach)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 0.3), st.floats(0, 0.3)), min_size=2, max_size=6))
def test_the_interval_contains_students_and_that_of_the_errors_within(of: list[tuple[float, float, float]]) -> None:
    found = share_mean([pair(value, value - below, value + above) for value, below, above in of])
    alone = share_mean([value for value, _, _ in of])
    assert found.low <= alone.low
    assert found.high >= alone.high
    assert found.low <= max(found.value - np.sqrt(sum(below**2 for _, below, _ in of)) / len(of), 0) + 1e-12
    assert found.high >= min(found.value + np.sqrt(sum(above**2 for _, _, above in of)) / len(of), 1) - 1e-12


@pytest.mark.parametrize("between", [0.0, 0.15])
def test_the_interval_covers_the_mean_area_also_where_pairs_happen_to_agree(between: float) -> None:
    """Two pairs of 65 forgotten and 130 others, normal scores whose distance differs between pairs by `between`."""
    draw, studies = np.random.default_rng(20), 400
    distances = 0.5 + between * draw.standard_normal((studies, 2))
    truth = float(np.mean(stats.norm.cdf((0.5 + between * draw.standard_normal(100_000)) / np.sqrt(2))))
    ours, students, close = [], [], []
    for own in distances:
        areas = [independent_area(d + draw.standard_normal(65), draw.standard_normal(130)) for d in own]
        found, alone = share_mean([vars(area) for area in areas]), share_mean([area.value for area in areas])
        ours.append(found.low <= truth <= found.high)
        students.append(alone.low <= truth <= alone.high)
        close.append(abs(areas[0].value - areas[1].value))
    agreeing = np.array(close) < np.quantile(close, 0.1)
    assert np.mean(ours) > 0.94
    assert np.mean(np.array(ours)[agreeing]) > 0.85
    assert np.mean(np.array(students)[agreeing]) < 0.75
