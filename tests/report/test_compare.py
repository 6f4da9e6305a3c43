"""Ours beside the paper's, and both formulas with intervals."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warp_unlearning.report.compare import (
    advantage_gone,
    bare,
    beside,
    difference,
    direction,
    improvement,
    magnitude,
    privacy_gain,
    rate_beside,
    ratio,
    spread_of,
    tally,
)
from warp_unlearning.report.paper_numbers import PaperNumber, paper_table
from warp_unlearning.report.schema import Rate
from warp_unlearning.stats.intervals import Estimate

number = PaperNumber.parse


@pytest.mark.parametrize(
    ("ours", "printed", "outcome", "words"),
    [
        (Estimate(0.53, 0.50, 0.56), "0.545", "agrees", "0.530 [0.500, 0.560]; paper 0.545, agrees"),
        (Estimate(0.53, 0.52, 0.54), "0.545", "differs", "paper 0.545, **differs** by −0.015"),
        # 0.5446 rounds to 0.545.
        (Estimate(0.53, 0.52, 0.5446), "0.545", "agrees", "agrees"),
        (Estimate(0.53, 0.52, 0.5444), "0.545", "differs", "differs"),
        (Estimate(0.6, 0.58, 0.62), "0.545", "differs", "by +0.055"),
        (bare(0.53), "0.545", "no interval", "0.530 (no interval); paper 0.545"),
        (None, "0.545", "not measured", "not measured; paper 0.545"),
        (Estimate(2.5, 2.4, 2.6), "2..3", "agrees", "paper 2 to 3, agrees"),
        (Estimate(4.0, 3.9, 4.1), "2..3", "differs", "by +1.000"),
        (Estimate(1.18, 1.0, 1.39), "2..3", "differs", "by −0.820"),
        (Estimate(0.05, 0.04, 0.06), "<0.01", "differs", "by +0.040"),
    ],
)
def test_the_rule(ours: Estimate | None, printed: str, outcome: str, words: str) -> None:
    cell = beside(ours, number(printed))
    assert cell.outcome == outcome
    assert words in cell.text
    assert ("agrees" in cell.text) == (outcome == "agrees")


def test_ours_is_taken_to_the_paper_s_unit() -> None:
    assert beside(Estimate(0.17, 0.16, 0.18), number("17"), scale=100, digits=1).outcome == "agrees"
    assert beside(Estimate(0.17, 0.16, 0.18), number("27"), scale=100, digits=1).text.endswith("by −10.0")


def test_nothing_is_said_without_a_number_of_the_paper_or_a_common_ground() -> None:
    assert beside(Estimate(0.5, 0.4, 0.6), None).outcome is None
    assert beside(Estimate(30, 29, 31), number("30"), compared=False).outcome == "not compared"


def test_an_interval_that_contains_guessing_says_so() -> None:
    wide, narrow = Estimate(0.6, 0.4, 0.8), Estimate(0.6, 0.55, 0.7)
    assert beside(wide, number("0.650"), chance=0.5).text.endswith("agrees, as does guessing")
    assert beside(narrow, number("0.650"), chance=0.5).text.endswith("agrees")
    cells = [beside(e, number("0.650"), chance=0.5) for e in (wide, narrow)]
    assert tally(cells) == "Of 2 numbers of the paper: 2 agree (1 of them with intervals that contain guessing too)."


def test_a_rate_that_is_not_resolved_is_neither_agreement_nor_difference() -> None:
    cell = rate_beside(Rate(fpr=0.001, resolved=False, negatives=400, tpr=None), number("0.012"))
    assert (cell.text, cell.outcome) == ("not resolved (400 negatives); paper 0.012", "not resolved")
    assert (
        rate_beside(
            Rate(fpr=0.01, resolved=True, negatives=4000, tpr=Estimate(0.02, 0.01, 0.04)), number("0.012")
        ).outcome
        == "agrees"
    )
    assert rate_beside(None, number("0.012")).outcome == "not measured"


def test_the_tally_counts_what_the_paper_has() -> None:
    cells = [
        beside(Estimate(0.5, 0.4, 0.6), number("0.5")),
        beside(Estimate(0.5, 0.4, 0.6), number("0.9")),
        beside(Estimate(0.5, 0.4, 0.6), None),
        beside(None, number("0.9")),
    ]
    assert tally(cells) == "Of 3 numbers of the paper: 1 agree, 1 differ, 1 not measured."
    assert tally([cells[2]]) == "The paper prints no number to compare with."


def test_a_direction_needs_an_interval_without_0() -> None:
    assert direction(Estimate(0.1, 0.01, 0.2)) == "lowers"
    assert direction(Estimate(-0.1, -0.2, -0.01)) == "raises"
    assert direction(Estimate(0.1, -0.01, 0.2)) == "not shown: the interval contains 0"
    assert direction(Estimate(0.1, 0.0, 0.2)) == "not shown: the interval contains 0"
    assert direction(bare(0.1)) == "no interval"
    assert direction(None) == "not measured"


@pytest.mark.parametrize(
    ("ours", "outcome"),
    [
        (Estimate(0.002, 0.0, 0.009), "agrees"),
        (Estimate(0.002, 0.0, 0.02), "not resolved"),
        (Estimate(0.03, 0.011, 0.05), "differs"),
        (bare(0.03), "no interval"),
        (None, "not measured"),
    ],
)
def test_a_bound_holds_only_where_the_whole_interval_does(ours: Estimate | None, outcome: str) -> None:
    assert beside(ours, number("<0.01"), within=True).outcome == outcome


def test_magnitudes_and_ranges() -> None:
    assert magnitude(Estimate(-0.3, -0.4, -0.2)) == Estimate(0.3, 0.2, 0.4)
    assert magnitude(Estimate(-0.1, -0.4, 0.2)) == Estimate(0.1, 0.0, 0.4)
    assert magnitude(None) is None
    found = spread_of([Estimate(0.5, 0.45, 0.55), None, Estimate(0.7, 0.65, 0.75)])
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.1, 0.3))
    assert spread_of([Estimate(0.5, 0.4, 0.6)]) is None
    assert spread_of([Estimate(0.5, 0.4, 0.6), bare(0.6)]) == bare(pytest.approx(0.1))


def test_the_paper_s_improvements_from_its_own_numbers() -> None:
    black, white = paper_table("tab:bb_mm_advred"), paper_table("fig:wb_privacy")
    numbers = [black.number(row, "all: AUC") for row in ("NGP", "NGP + WARP")]
    found = improvement("advantage", *numbers, "all: AUC")
    assert found is not None
    assert found.value == round(100 * (0.545 - 0.516) / (0.545 - 0.5), 1) == 64.4
    areas = {m: (white.number(m, "AUC"), white.number(f"{m} + WARP", "AUC")) for m in ("NGP", "SCRUB", "PGU", "BT")}
    recomputed = {m: str(improvement("advantage", *pair, "AUC")) for m, pair in areas.items()}
    assert recomputed == {"NGP": "19.7", "SCRUB": "21.5", "PGU": "79.2", "BT": "7.1"}
    assert str(improvement("privacy", *areas["BT"], "AUC")) == "50.0"
    # With c the false-positive rate: (0.012 − 0.003) / (0.012 − 0.001).
    rates = [black.number(row, "all: TPR at 0.1 %") for row in ("NGP", "NGP + WARP")]
    assert str(improvement("advantage", *rates, "all: TPR at 0.1 %")) == "81.8"


def test_no_improvement_where_the_base_only_guesses_or_is_not_printed() -> None:
    assert improvement("advantage", number("0.5"), number("0.5"), "AUC") is None
    assert improvement("privacy", None, number("0.5"), "AUC") is None
    assert improvement("advantage", number("0.1"), number("2..3"), "PSNR") is None


@pytest.mark.parametrize("correlation", [-0.95, 0.0, 0.95])
def test_intervals_from_two_separate_ones_cover_for_any_correlation(correlation: float) -> None:
    """Normal estimates of known spread, 95 % intervals of each: what is made of both holds at least as often."""
    generator = np.random.default_rng(20)
    true = np.array([0.7, 0.62])
    spread = np.array([0.02, 0.015])
    covariance = np.outer(spread, spread) * np.array([[1, correlation], [correlation, 1]])
    draws = generator.multivariate_normal(true, covariance, 2000)
    wanted = {
        difference: true[0] - true[1],
        advantage_gone: 1 - 0.12 / 0.2,
        privacy_gain: 0.38 / 0.3 - 1,
        ratio: true[0] / true[1],
    }
    for function, value in wanted.items():
        held = 0
        for draw in draws:
            pair = [Estimate(d, d - 1.96 * s, d + 1.96 * s) for d, s in zip(draw, spread, strict=True)]
            found = function(*pair)
            assert found is not None
            assert found.low is not None
            assert found.high is not None
            held += found.low <= value <= found.high
        assert held / len(draws) > 0.935, function


@given(st.floats(0.51, 0.99), st.floats(0.3, 0.99), st.floats(0, 0.005))
def test_the_value_lies_in_its_interval(base: float, defended: float, reach: float) -> None:
    pair = [Estimate(v, v - reach, v + reach) for v in (base, defended)]
    for function in (difference, advantage_gone, privacy_gain, ratio):
        found = function(*pair)
        assert found is not None
        assert found.value is not None
        assert found.low is not None
        assert found.high is not None
        assert found.low <= found.value + 1e-12
        assert found.value <= found.high + 1e-12


def test_no_ratio_to_nothing_and_no_interval_where_the_bottom_reaches_0() -> None:
    assert ratio(Estimate(1, 0, 2), Estimate(0, -1, 1)) is None
    assert ratio(Estimate(1, 0, 2), Estimate(1, -1, 3)) == bare(1)
    assert ratio(Estimate(1, -inf, 2), Estimate(1, 0.5, 3)) == bare(1)
    assert difference(None, Estimate(1, 0, 2)) is None
