from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warp_unlearning.report.measures import Estimate
from warp_unlearning.report.paper.formulas import (
    FORMULAS,
    advantage_gone,
    chance_of,
    difference,
    improvement,
    privacy_gain,
    ratio,
    reproduces,
)
from warp_unlearning.report.paper.numbers import PaperNumber, paper_table


def cells(label: str) -> list[tuple[str, str, PaperNumber, PaperNumber, PaperNumber]]:
    """(row, column, base, defended, improvement) of every improvement that a table prints."""
    table, found = paper_table(label), []
    for row, columns in table.improvements.items():
        other = "filtered" if label == "tab:recon_core" else f"{row} + WARP"
        for column, printed in columns.items():
            base, defended = table.number(row, column), table.number(other, column)
            assert base is not None
            assert defended is not None
            found.append((row, column, base, defended, printed))
    return found


def test_table_1_has_the_share_of_the_advantage_and_for_accuracy_that_of_errors() -> None:
    found = cells("tab:bb_mm_advred")
    privacy = [c for c in found if c[1] != "test accuracy"]
    accuracy = [c for c in found if c[1] == "test accuracy"]
    assert len(privacy) == 47
    assert all(reproduces("advantage", b, w, p) for _, _, b, w, p in privacy)
    assert len(accuracy) == 6
    assert all(reproduces("errors", b, w, p) for _, _, b, w, p in accuracy)
    assert not any(reproduces("of base", b, w, p) for _, _, b, w, p in accuracy)


def test_the_vit_table_has_the_share_of_the_advantage() -> None:
    assert all(reproduces("advantage", b, w, p) for _, _, b, w, p in cells("tab:wb_vit"))


def test_the_white_box_areas_follow_no_single_formula() -> None:
    areas = {row: (b, w, p) for row, column, b, w, p in cells("fig:wb_privacy") if column == "AUC"}
    assert not any(reproduces("advantage", *c) for c in areas.values())
    assert {row for row, c in areas.items() if reproduces("privacy", *c)} == {"SCRUB", "BT"}
    recomputed = {row: improvement("advantage", b, w) for row, (b, w, _) in areas.items()}
    assert recomputed == pytest.approx(
        {"NGP": 19.7, "SCRUB": 21.5, "PGU": 79.2, "SalUn": 7.2, "SF": 24.1, "BT": 7.1}, abs=0.05
    )
    assert improvement("privacy", *areas["BT"][:2]) == pytest.approx(50.0)
    assert areas["PGU"][2].value == 92.9


def test_of_the_white_box_rates_six_follow_the_formula() -> None:
    rates = [c for c in cells("fig:wb_privacy") if c[1] != "AUC"]
    follow = [column for _, column, b, w, p in rates if reproduces("advantage", b, w, p)]
    assert len(rates) == 18
    assert follow == ["TPR at 0.1 %"] * 6


def test_the_reconstruction_tables_divide_by_different_numbers() -> None:
    def share(base: PaperNumber, other: PaperNumber, by: str) -> tuple[float, float]:
        ends = [abs(100 * FORMULAS[by](b, w, 0)) for b in (base.low, base.high) for w in (other.low, other.high)]
        return min(ends), max(ends)

    def by(label: str) -> dict[str, set[str]]:
        return {
            column: {
                name
                for name in ("of base", "of defended")
                if share(b, w, name)[0] <= p.high and p.low <= share(b, w, name)[1]
            }
            for _, column, b, w, p in cells(label)
        }

    assert all("of base" in names for names in by("tab:recon_core").values())
    defended = by("tab:recon_teleport")
    assert {c for c, names in defended.items() if names == {"of defended"}} == {
        "PSNR",
        "LPIPS (Alex)",
        "MSE",
        "feature MSE",
    }
    assert {c for c, names in defended.items() if names == {"of base"}} == {"SSIM", "LPIPS (VGG)"}


def test_the_formula_is_that_of_the_audits() -> None:
    base, defended = (paper_table("tab:bb_mm_advred").number(row, "all: AUC") for row in ("NGP", "NGP + WARP"))
    assert base is not None
    assert defended is not None
    assert improvement("advantage", base, defended) == pytest.approx(100 * (0.545 - 0.516) / (0.545 - 0.5))


def test_no_improvement_where_the_base_only_guesses() -> None:
    number = PaperNumber("t", "r", "AUC", "share", "0.5", 0.5, 0.45, 0.55, None)
    printed = PaperNumber("t", "r", "AUC", "%", "50", 50.0, 49.5, 50.5, None)
    assert improvement("advantage", number, number) is None
    assert not reproduces("advantage", number, number, printed)


def test_what_guessing_scores() -> None:
    assert chance_of("most memorised 1 %: TPR at 5 %") == 0.05
    assert chance_of("most memorised 1 %: AUC") == 0.5
    assert chance_of("test accuracy") == 0


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
    assert ratio(Estimate(1, 0, 2), Estimate(1, -1, 3)) == Estimate(1, None, None)
    assert ratio(Estimate(1, None, 2), Estimate(1, 0.5, 3)) == Estimate(1, None, None)
    assert difference(Estimate(None, None, None), Estimate(1, 0, 2)) is None
