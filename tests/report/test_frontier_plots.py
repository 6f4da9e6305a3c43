from __future__ import annotations

from typing import Any

from warp_unlearning.report.frontier_plots import frontier_plot
from warp_unlearning.report.style import house_style


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
