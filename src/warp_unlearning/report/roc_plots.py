"""ROC curves of every method, one curve a defence: on linear axes, and on logarithmic ones."""

from __future__ import annotations

from functools import partial
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .labels import brief, defense_label, method_label
from .measures import Rate, written
from .plots import Gallery, Plot
from .shadow_arm import Arm
from .shadow_results import ShadowResults
from .style import FAINT, GRID, PERCENT, blank, look

Scale = Literal["linear", "log"]
# So many false positives make a rate; fewer are noise.
RESOLUTION = 10
SHOWN = (0.001, 0.01, 0.05)


def roc_gallery(results: ShadowResults, scale: Scale) -> Gallery:
    """One figure a method."""
    defenses = [arm.defense for arm in results.arms]
    plots = []
    for method in results.methods:
        arms = [arm for arm in results.arms_of(method) if arm.roc is not None]
        if arms:
            plots.append(_plot(method, arms, scale, defenses))
    common = (
        "How many forgotten examples an attacker finds (true positives) when accepting that so many unseen ones are "
        "accused (false positives). On the diagonal the attacker guesses; the further above it, the larger the leak. "
        "Points with bars are true-positive rates with their 95 % intervals."
    )
    small = (
        " Logarithmic axes show the attacker who must seldom be wrong. In the grey area fewer than "
        f"{RESOLUTION} false positives remain: curves there are noise, and no rate is stated."
    )
    if scale == "linear":
        return Gallery("roc", "ROC curves", common, tuple(plots))
    return Gallery("roc-log", "ROC curves at small false-positive rates", common + small, tuple(plots))


def _plot(method: str, arms: list[Arm], scale: Scale, defenses: list[str | None]) -> Plot:
    areas = "; ".join(
        f"{defense_label(arm.defense)}: AUC {written(None if arm.score is None else arm.score.auc)}" for arm in arms
    )
    axes = "logarithmic" if scale == "log" else "linear"
    return Plot(
        brief(method_label(method)),
        f"ROC curves on {axes} axes for {method_label(method)}. {areas}.",
        partial(_draw, method, arms, scale, defenses),
    )


def _draw(method: str, arms: list[Arm], scale: Scale, defenses: list[str | None]) -> Figure:
    figure = blank(4.0, 3.7)
    axes = figure.subplots()
    negatives = min((arm.score.negatives for arm in arms if arm.score is not None), default=0) or 100
    floor = max(min(1 / negatives, 0.01), 1e-6)
    axes.plot([floor if scale == "log" else 0, 1], [floor if scale == "log" else 0, 1], color=FAINT, lw=0.8, ls=":")
    for arm in arms:
        _curve(axes, arm, scale, floor, defenses)
    axes.set(xlabel="false-positive rate", ylabel="true-positive rate", title=brief(method_label(method)))
    axes.grid(True)
    if scale == "log":
        axes.set(xscale="log", yscale="log", xlim=(floor, 1), ylim=(floor, 1.05))
        axes.axvspan(floor, min(RESOLUTION / negatives, 1), color=GRID, alpha=0.6, lw=0)
        axes.minorticks_off()
    else:
        axes.set(xlim=(0, 1), ylim=(0, 1.01))
    # A change of scale would put the formatters back.
    axes.xaxis.set_major_formatter(PERCENT)
    axes.yaxis.set_major_formatter(PERCENT)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def _curve(axes: Axes, arm: Arm, scale: Scale, floor: float, defenses: list[str | None]) -> None:
    shown = look(arm.defense, defenses)
    if arm.roc is None:
        return
    points = [(x, y) for x, y in zip(arm.roc.x, arm.roc.y, strict=True) if scale == "linear" or (x > 0 and y > 0)]
    axes.plot(
        [x for x, _ in points],
        [y for _, y in points],
        color=shown.color,
        ls=shown.line,
        lw=1.4,
        label=brief(defense_label(arm.defense)),
    )
    rates = [rate for fpr in SHOWN if (rate := None if arm.score is None else arm.score.rate(fpr)) is not None]
    for rate in rates:
        _rate(axes, rate, shown.color, shown.marker, floor if scale == "log" else 0.0)


def _rate(axes: Axes, rate: Rate, color: str, marker: str, floor: float) -> None:
    tpr = rate.tpr
    if tpr is None or tpr.value is None or tpr.value < floor:
        return
    axes.plot([rate.fpr], [tpr.value], color=color, marker=marker, ms=4)
    if tpr.low is not None and tpr.high is not None:
        axes.plot([rate.fpr, rate.fpr], [max(tpr.low, floor), tpr.high], color=color, lw=1)
