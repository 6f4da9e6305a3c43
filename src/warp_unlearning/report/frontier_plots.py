"""The trials of a tuning: accuracy on held-out points against membership advantage, a panel for each method.

Trials whose accuracy lies far below all that matter, ruined models, are counted in the panel and not drawn: they would
press the others into one line.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .labels import brief, counted, defense_label, method_label
from .plots import Plot
from .style import FAINT, INK, PERCENT, blank, look

_MARGIN = 0.05


def frontier_plot(frontier: Mapping[str, Any]) -> Plot:
    """One figure of all arms. Trials on the frontier are filled and joined, the chosen ones ringed."""
    parts = []
    for arm in frontier["arms"]:
        best = [point for point in arm["points"] if point["pareto"]]
        name = f"{method_label(arm['method'])} with {defense_label(arm['defense'])}"
        if best:
            low, high = (f(p["advantage"] for p in best) for f in (min, max))
            where = f"{len(best)} on the frontier, of advantage {low:.3f} to {high:.3f}"
            parts.append(f"{name}: {len(arm['points'])} trials, {where}")
        else:
            parts.append(f"{name}: no complete trial")
    description = f"Accuracy on held-out points against membership advantage of every trial. {'; '.join(parts)}."
    return Plot("Frontier of the tuning", description, partial(_draw, frontier))


def _draw(frontier: Mapping[str, Any]) -> Figure:
    methods = list(dict.fromkeys(arm["method"] for arm in frontier["arms"]))
    columns = min(3, len(methods))
    rows = -(-len(methods) // columns)
    figure = blank(max(4.2, 3.1 * columns), 0.6 + 2.7 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    defenses = list(dict.fromkeys(arm["defense"] for arm in frontier["arms"]))
    oracle = frontier["retrained"]
    best = oracle["accuracy"]["held_out"]
    for axes, method in zip(panels, methods, strict=False):
        arms = [arm for arm in frontier["arms"] if arm["method"] == method]
        floor = _floor(arms, best)
        for arm in arms:
            _arm(axes, arm, defenses, floor)
        axes.plot([oracle["advantage"]], [best], ls="none", marker="*", ms=9, mfc=FAINT, mec=FAINT)
        below = sum(point["accuracy"] < floor for arm in arms for point in arm["points"])
        note = f" ({counted(below, 'trial')} below)" if below else ""
        axes.set(xlabel="membership advantage", title=f"{brief(method_label(method), 20)}{note}")
        axes.set_xlim(left=0)
        axes.yaxis.set_major_formatter(PERCENT)
        axes.grid(True)
    for axes in panels[len(methods) :]:
        axes.set_visible(False)
    for row in range(rows):
        panels[row * columns].set_ylabel("held-out accuracy")
    shown = [(brief(defense_label(name), 22), look(name, defenses)) for name in defenses]
    handles = [
        panels[0].plot([], [], ls="none", color=each.color, marker=each.marker, ms=5, label=label)[0]
        for label, each in shown
    ]
    star = panels[0].plot([], [], ls="none", marker="*", ms=9, mfc=FAINT, mec=FAINT, label="retrained")[0]
    figure.legend(handles=[*handles, star], loc="outside lower center", ncols=min(4, len(handles) + 1))
    return figure


def _floor(arms: list[Mapping[str, Any]], best: float) -> float:
    """The lowest accuracy that is drawn: below every chosen trial and every one on a frontier that keeps half of it."""
    points = [point for arm in arms for point in arm["points"]]
    kept = [p["accuracy"] for p in points if p["chosen"] or (p["pareto"] and p["accuracy"] > best / 2)]
    return float(min([best, *kept])) - _MARGIN


def _arm(axes: Axes, arm: Mapping[str, Any], defenses: list[str | None], floor: float) -> None:
    shown = look(arm["defense"], defenses)
    drawn = [point for point in arm["points"] if point["accuracy"] >= floor]
    best = sorted((point["advantage"], point["accuracy"]) for point in drawn if point["pareto"])
    axes.plot([x for x, _ in best], [y for _, y in best], color=shown.color, ls=shown.line, lw=1.1)
    for point in drawn:
        x, y = [point["advantage"]], [point["accuracy"]]
        fill = shown.color if point["pareto"] else "none"
        axes.plot(x, y, ls="none", marker=shown.marker, ms=4.5, mec=shown.color, mfc=fill, alpha=0.9)
        if point["chosen"]:
            axes.plot(x, y, ls="none", marker="o", ms=10, mec=INK, mfc="none", mew=0.9)
