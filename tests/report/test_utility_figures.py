from __future__ import annotations

from typing import Any

import pytest

from warp_unlearning.report.drawing import house_style
from warp_unlearning.report.schema import rate_at
from warp_unlearning.report.utility_figures import frontier_plot, radar_axes, radar_gallery
from warp_unlearning.stats.intervals import Estimate


def point(accuracy: float, advantage: float, *, pareto: bool = False, chosen: bool = False) -> dict[str, Any]:
    return {"trial": 0, "accuracy": accuracy, "advantage": advantage, "pareto": pareto, "chosen": chosen}


def frontier(points: list[dict[str, Any]], methods: int = 1) -> dict[str, Any]:
    arms = [
        {"name": "", "method": name, "defense": defense, "points": points}
        for name in ("ngp", "$x$ <b>", "scrub", "pgu")[:methods]
        for defense in (None, "warp", "of my own")
    ]
    return {"retrained": {"accuracy": {"held_out": 0.95}, "advantage": 0.02}, "arms": arms}


GOOD = [point(0.9, 0.1, pareto=True), point(0.94, 0.2, pareto=True, chosen=True), point(0.92, 0.3), point(0.1, 0.0)]


def test_the_description_says_what_is_on_the_frontier() -> None:
    text = frontier_plot(frontier(GOOD)).description
    assert "NGP with WARP: 4 trials, 2 on the frontier, of advantage 0.100 to 0.200" in text
    assert "no complete trial" in frontier_plot(frontier([])).description


def test_ruined_models_are_counted_and_not_drawn() -> None:
    with house_style():
        axes = frontier_plot(frontier(GOOD)).draw().axes[0]
    assert axes.get_title() == "NGP (3 trials below)"
    assert axes.get_ylim()[0] > 0.8
    assert axes.get_xlim()[0] == 0


def test_there_is_a_panel_for_each_method_and_every_form_can_be_written() -> None:
    plot = frontier_plot(frontier(GOOD, methods=4))
    with house_style():
        titles = [axes.get_title() for axes in plot.draw().axes if axes.get_visible()]
    assert titles == [
        "NGP (3 trials below)",
        "$x$ <b> (3 trials below)",
        "SCRUB (3 trials below)",
        "PGU (3 trials below)",
    ]
    assert plot.file("pdf").startswith(b"%PDF")
    assert frontier_plot(frontier([])).file("png").startswith(b"\x89PNG")


def test_the_six_axes_of_a_radar_chart_and_their_values(results: Any) -> None:
    axes = radar_axes(results)
    assert [label.replace("\n", " ") for label, _ in axes] == [
        "black-box AUC",
        "black-box TPR at 1 % FPR",
        "AUC, most memorised 1 %",
        "white-box AUC",
        "white-box TPR at 1 % FPR",
        "test accuracy",
    ]
    arm = results.arms[0]
    found = [value(arm) for _, value in axes]
    area, slice_area, white = arm.all.auc, arm.slices["most memorised 1 %"].auc, arm.gradient_test.auc
    assert found[0].value == pytest.approx(1 - 2 * abs(area.value - 0.5))
    assert found[0].low == pytest.approx(1 - 2 * (area.high - 0.5))
    assert found[2].value == pytest.approx(1 - 2 * abs(slice_area.value - 0.5))
    assert found[3].value == pytest.approx(1 - 2 * abs(white.value - 0.5))
    rate = rate_at(arm.all.rates, 0.01).tpr
    assert found[1].value == pytest.approx(1 - (rate.value - 0.01) / 0.99)
    assert found[1].low == pytest.approx(1 - (rate.high - 0.01) / 0.99)
    assert found[5] == arm.accuracy.test


def test_an_attacker_who_is_worse_than_guessing_at_a_rate_is_drawn_at_the_rim(data: Any, read: Any) -> None:
    for rate in data["arms"][0]["all"]["rates"]:
        if rate["fpr"] == 0.01:
            rate["tpr"] = {"value": 0.0, "low": 0.0, "high": 0.02}
    found = read(data)
    assert radar_axes(found)[1][1](found.arms[0]) == Estimate(1.0, pytest.approx(0.98 / 0.99), 1.0)


def test_axes_that_were_not_measured_say_so(data: Any, read: Any) -> None:
    for arm in data["arms"]:
        arm |= {"gradient_test": None, "slices": {}}
    svg = radar_gallery(read(data)).plots[0].svg("radar-01")
    assert svg.count("(not measured)") == 3
