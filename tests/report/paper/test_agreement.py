from __future__ import annotations

import pytest

from warp_unlearning.report.measures import Estimate, Rate
from warp_unlearning.report.paper.agreement import beside, direction, rate_beside, tally
from warp_unlearning.report.paper.bounds import bound_cell, magnitude, spread_of
from warp_unlearning.report.paper.numbers import PaperNumber, parse_number


def number(printed: str) -> PaperNumber:
    return PaperNumber("tab:x", "row", "column", "share", printed, *parse_number(printed))


@pytest.mark.parametrize(
    ("ours", "printed", "outcome", "words"),
    [
        (Estimate(0.53, 0.50, 0.56), "0.545", "agrees", "0.530 [0.500, 0.560]; paper 0.545, agrees"),
        (Estimate(0.53, 0.52, 0.54), "0.545", "differs", "paper 0.545, **differs** by −0.015"),
        # 0.5446 rounds to 0.545.
        (Estimate(0.53, 0.52, 0.5446), "0.545", "agrees", "agrees"),
        (Estimate(0.53, 0.52, 0.5444), "0.545", "differs", "differs"),
        (Estimate(0.6, 0.58, 0.62), "0.545", "differs", "by +0.055"),
        (Estimate(0.53, None, None), "0.545", "no interval", "0.530 (no interval); paper 0.545"),
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
    cell = rate_beside(Rate(0.001, False, 400, None), number("0.012"))
    assert (cell.text, cell.outcome) == ("not resolved (400 negatives); paper 0.012", "not resolved")
    assert rate_beside(Rate(0.01, True, 4000, Estimate(0.02, 0.01, 0.04)), number("0.012")).outcome == "agrees"
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
    assert direction(Estimate(0.1, None, None)) == "no interval"
    assert direction(None) == "not measured"


def test_a_bound_holds_only_where_the_whole_interval_does() -> None:
    bound = number("<0.01")
    assert bound_cell(Estimate(0.002, 0.0, 0.009), bound).outcome == "agrees"
    assert bound_cell(Estimate(0.002, 0.0, 0.02), bound).outcome == "not resolved"
    assert bound_cell(Estimate(0.03, 0.011, 0.05), bound).outcome == "differs"
    assert bound_cell(Estimate(0.03, None, None), bound).outcome == "no interval"
    assert bound_cell(None, bound).outcome == "not measured"


def test_magnitudes_and_ranges() -> None:
    assert magnitude(Estimate(-0.3, -0.4, -0.2)) == Estimate(0.3, 0.2, 0.4)
    assert magnitude(Estimate(-0.1, -0.4, 0.2)) == Estimate(0.1, 0.0, 0.4)
    assert magnitude(None) is None
    found = spread_of([Estimate(0.5, 0.45, 0.55), None, Estimate(0.7, 0.65, 0.75)])
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.1, 0.3))
    assert spread_of([Estimate(0.5, 0.4, 0.6)]) is None
    assert spread_of([Estimate(0.5, 0.4, 0.6), Estimate(0.6, None, None)]) == Estimate(pytest.approx(0.1), None, None)
