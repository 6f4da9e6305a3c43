"""Figures of privacy against utility: radar charts, accuracy against privacy, lines over a sweep, and frontiers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, cos, isfinite, pi, sin
from textwrap import fill
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ..stats.area import strength_of
from ..stats.intervals import Estimate
from .compare import mapped
from .drawing import (
    FAINT,
    GRID,
    INK,
    PERCENT,
    SERIES,
    Gallery,
    Look,
    Plot,
    blank,
    interval,
    legend_below,
    look,
)
from .figures import SHOWN
from .schema import Rates, rate_at
from .schema_shadow import Arm, GradientTest, Score, Shadow
from .words import NOT_MEASURED, brief, counted, defense_label, method_label, written


@dataclass(frozen=True)
class Line:
    """Points over what was swept; `defense` gives the look."""

    label: str
    defense: str | None
    points: Sequence[tuple[float, Estimate | None]]
    paper: Sequence[tuple[float, float]] = ()


def lines_plot(title: str, across: str, panels: Sequence[tuple[str, Sequence[Line]]], *, log: bool = False) -> Plot:
    """Panels side by side, each with its own axis upwards and lines over one sweep."""
    words = "; ".join(
        f"{label}: " + ", ".join(f"{line.label} at {x:g} {written(e)}" for line in lines for x, e in line.points)
        for label, lines in panels
    )
    return Plot(title, f"{title}. {words}.", partial(_draw_lines, across, panels, log))


def _draw_lines(across: str, panels: Sequence[tuple[str, Sequence[Line]]], log: bool) -> Figure:
    figure = blank(3.4 * max(len(panels), 1), 3.2)
    for (label, lines), axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
        defenses = [line.defense for line in lines]
        for number, line in enumerate(lines):
            alike = len(lines) > 1 and len(set(defenses)) == 1
            shown = SERIES[number % len(SERIES)] if alike else look(line.defense, defenses)
            known = [(x, e) for x, e in line.points if e is not None]
            axes.plot([x for x, _ in known], [e.value for _, e in known], color=shown.color, ls=shown.line)
            axes.lines[-1].set(label=brief(line.label), marker=shown.marker, markersize=4)
            for x, estimate in known:
                interval(axes, x, estimate, shown, upright=True)
            for x, y in line.paper:
                axes.plot([x], [y], marker="d", ms=6, mfc="none", mec=shown.color, ls="none", label="paper")
        if log:
            axes.set_xscale("log")
            axes.minorticks_off()
        ticks = sorted({x for line in lines for x, _ in line.points})
        axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
        axes.set(xlabel=across, ylabel=label)
        axes.grid(True)
    legend_below(figure)
    return figure


def trade_plot(title: str, points: Sequence[tuple[str | None, Estimate | None, Estimate | None]]) -> Plot:
    """Test accuracy to the right, 1 − AUC upwards, a point an arm: (defence, accuracy, 1 − AUC)."""
    words = "; ".join(f"{defense_label(d)}: accuracy {written(a)}, 1 − AUC {written(p)}" for d, a, p in points)
    return Plot(title, f"{title}. {words}.", partial(_draw_trade, points))


def _draw_trade(points: Sequence[tuple[str | None, Estimate | None, Estimate | None]]) -> Figure:
    figure = blank(4.6, 3.4)
    axes = figure.subplots()
    for defense, accuracy, privacy in points:
        if accuracy is not None and privacy is not None:
            shown = look(defense, [name for name, *_ in points])
            interval(axes, privacy.value, accuracy, shown, label=brief(defense_label(defense)))
            interval(axes, accuracy.value, privacy, shown, upright=True)
    axes.axhline(0.5, color=FAINT, lw=0.8, ls=":", label="guessing")
    axes.set(xlabel="test accuracy", ylabel="1 − AUC")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.grid(True)
    legend_below(figure)
    return figure


def frontier_plot(frontier: Mapping[str, Any]) -> Plot:
    """The trials of a tuning, accuracy on held-out points against membership advantage, a panel a method.

    Trials on the frontier are filled and joined, the chosen ones ringed. Ruined models, far below all that matter, are
    counted and not drawn: they would press the others into one line.
    """
    parts = []
    for arm in frontier["arms"]:
        best = [point["advantage"] for point in arm["points"] if point["pareto"]]
        where = (
            f"{len(arm['points'])} trials, {len(best)} on the frontier, of advantage {min(best):.3f} to {max(best):.3f}"
            if best
            else "no complete trial"
        )
        parts.append(f"{method_label(arm['method'])} with {defense_label(arm['defense'])}: {where}")
    description = f"Accuracy on held-out points against membership advantage of every trial. {'; '.join(parts)}."
    return Plot("Frontier of the tuning", description, partial(_draw_frontier, frontier))


def _draw_frontier(frontier: Mapping[str, Any]) -> Figure:
    methods = list(dict.fromkeys(arm["method"] for arm in frontier["arms"]))
    defenses = list(dict.fromkeys(arm["defense"] for arm in frontier["arms"]))
    columns = min(3, len(methods))
    rows = -(-len(methods) // columns)
    figure = blank(max(4.2, 3.1 * columns), 0.6 + 2.7 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    best = frontier["retrained"]["accuracy"]["held_out"]
    for axes, method in zip(panels, methods, strict=False):
        arms = [arm for arm in frontier["arms"] if arm["method"] == method]
        points = [point for arm in arms for point in arm["points"]]
        kept = [p["accuracy"] for p in points if p["chosen"] or (p["pareto"] and p["accuracy"] > best / 2)]
        floor = min([best, *kept]) - 0.05
        for arm in arms:
            _trials(axes, [p for p in arm["points"] if p["accuracy"] >= floor], look(arm["defense"], defenses))
        star = {"ls": "none", "marker": "*", "ms": 9, "mfc": FAINT, "mec": FAINT, "label": "retrained"}
        axes.plot([frontier["retrained"]["advantage"]], [best], **star)
        below = sum(point["accuracy"] < floor for point in points)
        note = f" ({counted(below, 'trial')} below)" if below else ""
        axes.set(xlabel="membership advantage", title=f"{brief(method_label(method), 20)}{note}")
        axes.set_xlim(left=0)
        axes.yaxis.set_major_formatter(PERCENT)
        axes.grid(True)
    for axes in panels[len(methods) :]:
        axes.set_visible(False)
    for axes in panels[::columns]:
        axes.set_ylabel("held-out accuracy")
    for name in defenses:
        shown = look(name, defenses)
        kind = {"ls": "none", "color": shown.color, "marker": shown.marker, "ms": 5}
        panels[0].plot([], [], label=brief(defense_label(name), 22), **kind)
    legend_below(figure)
    return figure


def _trials(axes: Axes, points: list[Mapping[str, Any]], shown: Look) -> None:
    best = sorted((point["advantage"], point["accuracy"]) for point in points if point["pareto"])
    axes.plot([x for x, _ in best], [y for _, y in best], color=shown.color, ls=shown.line, lw=1.1)
    for point in points:
        x, y = [point["advantage"]], [point["accuracy"]]
        fill = shown.color if point["pareto"] else "none"
        axes.plot(x, y, ls="none", marker=shown.marker, ms=4.5, mec=shown.color, mfc=fill, alpha=0.9)
        if point["chosen"]:
            axes.plot(x, y, ls="none", marker="o", ms=10, mec=INK, mfc="none", mew=0.9)


Axis = tuple[str, Callable[[Arm], Estimate | None]]
"""The label of an axis of a radar chart, and its value, 1 for the best there is."""


def radar_axes(results: Shadow) -> tuple[Axis, ...]:
    """Black-box AUC and TPR, AUC on the most memorised, white-box AUC and TPR, test accuracy.

    Privacy has a scale that does not depend on the other methods: 1 where the attacker only guesses, 0 where the
    attacker is never wrong, 2 − 2 max(AUC, 1 − AUC) and min(1, (1 − TPR) / (1 − FPR)). Rates are the smallest that the
    results resolve.
    """
    memorised = next(
        (name for arm in results.arms for name, score in (arm.slices or {}).items() if score is not None), None
    )
    black = _smallest([arm.all.rates for arm in results.arms if arm.all is not None])
    white = _smallest([arm.gradient_test.rates or () for arm in results.arms if arm.gradient_test is not None])
    small = ["at a small FPR" if fpr is None else f"at {100 * fpr:g} % FPR" for fpr in (black, white)]

    def in_slice(arm: Arm) -> Estimate | None:
        score = None if memorised is None else (arm.slices or {}).get(memorised)
        return None if score is None else _from_area(score.auc)

    return (
        ("black-box\nAUC", lambda arm: None if arm.all is None else _from_area(arm.all.auc)),
        (f"black-box TPR\n{small[0]}", lambda arm: _from_rate(arm.all, black)),
        (fill(f"AUC, {brief(memorised or 'most memorised', 30)}", 14), in_slice),
        ("white-box\nAUC", lambda arm: None if arm.gradient_test is None else _from_area(arm.gradient_test.auc)),
        (f"white-box TPR\n{small[1]}", lambda arm: _from_rate(arm.gradient_test, white)),
        ("test\naccuracy", lambda arm: None if arm.accuracy is None else arm.accuracy.test),
    )


def radar_gallery(results: Shadow) -> Gallery:
    """One radar chart a method."""
    text = (
        "Six axes: what an attacker sees who holds only the outputs of the model (black box: AUC, and true-positive "
        "rate at a small false-positive rate), the same on the most memorised examples, what an attacker sees who "
        "holds the weights before and after (white box, by the gradient-difference test, mean over pairs of models, "
        "with a threshold for each pair), and the accuracy on test examples. Outward is better: on the five axes "
        "of privacy the rim is an attacker who only guesses, the centre one who is never wrong; accuracy runs from 0 "
        "to 100 %. The axes are absolute, not stretched to the range of the methods shown. Bars are 95 % intervals."
    )
    axes, defenses = radar_axes(results), [arm.defense for arm in results.arms]
    plots = []
    for method in results.methods:
        arms = tuple(arm for arm in results.arms if arm.method == method)
        words = "; ".join(
            f"{defense_label(arm.defense)}: "
            + ", ".join(f"{label} {written(value(arm), digits=2)}".replace("\n", " ") for label, value in axes)
            for arm in arms
        )
        words = f"Radar chart for {method_label(method)}, 1 is best. {words}."
        plots.append(Plot(brief(method_label(method)), words, partial(_draw_radar, method, arms, axes, defenses)))
    return Gallery("radar", "Privacy and utility on six axes", text, tuple(plots))


def _draw_radar(method: str, arms: tuple[Arm, ...], axes: tuple[Axis, ...], defenses: list[str | None]) -> Figure:
    figure = blank(4.0, 3.4 + 0.2 * ceil(len(arms) / 2))
    plane = figure.subplots()
    ways = [(cos(angle), sin(angle)) for angle in (pi / 2 - 2 * pi * i / len(axes) for i in range(len(axes)))]
    for level in (0.25, 0.5, 0.75, 1.0):
        corners = [(level * x, level * y) for x, y in (*ways, ways[0])]
        plane.plot(*zip(*corners, strict=True), color=FAINT if level == 1 else GRID, lw=0.8 if level == 1 else 0.6)
    for (label, value), (x, y) in zip(axes, ways, strict=True):
        plane.plot([0, x], [0, y], color=GRID, lw=0.6)
        none = all(value(arm) is None for arm in arms)
        side: Literal["left", "center", "right"] = "center" if abs(x) < 0.1 else "left" if x > 0 else "right"
        edge: Literal["bottom", "top", "center"] = "bottom" if y > 0.9 else "top" if y < -0.9 else "center"
        text, color = (f"{label}\n({NOT_MEASURED})", FAINT) if none else (label, INK)
        plane.text(1.06 * x, 1.06 * y, text, fontsize=8, color=color, ha=side, va=edge)
    for arm in arms:
        shown, found = look(arm.defense, defenses), [value(arm) for _, value in axes]
        # A NaN leaves a gap, so that no line is drawn across an axis that was not measured.
        radii = [float("nan") if e is None else e.value for e in found]
        corners = [(r * x, r * y) for r, (x, y) in zip(radii, ways, strict=True)]
        kind = {"color": shown.color, "ls": shown.line, "marker": shown.marker, "ms": 3.5, "lw": 1.3}
        plane.plot(*zip(*corners, corners[0], strict=True), label=brief(defense_label(arm.defense)), **kind)
        for estimate, (x, y) in zip(found, ways, strict=True):
            if estimate is not None and isfinite(estimate.low) and isfinite(estimate.high):
                ends = [min(max(end, 0.0), 1.0) for end in (estimate.low, estimate.high)]
                along = [r * x for r in ends], [r * y for r in ends]
                plane.plot(*along, color=shown.color, lw=2.4, alpha=0.4, solid_capstyle="butt")
    plane.set(aspect="equal", xlim=(-1.64, 1.64), ylim=(-1.3, 1.3))
    plane.set_axis_off()
    figure.suptitle(brief(method_label(method)), fontsize=9.5)
    legend_below(figure)
    return figure


def _smallest(rates: list[Rates]) -> float | None:
    """The smallest of the rates shown that some arm resolves."""
    resolved = {rate.fpr for each in rates for rate in each if rate.resolved}
    return next((fpr for fpr in SHOWN if any(abs(fpr - known) < 1e-9 for known in resolved)), None)


def _from_area(found: Estimate) -> Estimate:
    return mapped(strength_of(found), -2, 2)


def _from_rate(test: Score | GradientTest | None, fpr: float | None) -> Estimate | None:
    rate = None if test is None or fpr is None else rate_at(test.rates, fpr)
    if rate is None or rate.tpr is None:
        return None
    found = mapped(rate.tpr, -1 / (1 - rate.fpr), 1 / (1 - rate.fpr))
    return Estimate(*(min(x, 1.0) for x in (found.value, found.low, found.high)))
