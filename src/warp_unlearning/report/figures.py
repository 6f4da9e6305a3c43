"""The figures of audits: dots with intervals, ROC curves, histograms, risks, and radar charts.

A function here returns a `Plot`, or a `Gallery` of them, from what a results file says; nothing is computed but places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Literal, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from ..stats.intervals import Estimate
from .drawing import (
    FAINT,
    FORGOTTEN,
    GRID,
    INK,
    NEVER,
    PERCENT,
    Gallery,
    Look,
    Plot,
    blank,
    interval,
    legend_below,
    look,
)
from .schema import AttackedModel, Pair, Reconstruction
from .schema_shadow import Arm, Histogram, Risk, Shadow
from .words import arm_label, brief, defense_label, method_label, written

A = TypeVar("A", bound=Arm)
Measure = Callable[[A], Estimate | None]
Scale = Literal["linear", "log"]
SHOWN = (0.001, 0.01, 0.05)
# So many false positives make a rate; fewer are noise.
RESOLUTION = 10


@dataclass(frozen=True)
class Mark:
    """A dot with its interval in one row, and the paper's number where it has one; `series` names its look."""

    row: str
    series: str
    look: Look
    estimate: Estimate | None
    paper: float | None = None


@dataclass(frozen=True)
class Panel:
    """Rows of marks over one axis. `guess` is what guessing scores and `retrained` what retraining does, drawn as lines
    where they are known. An axis of `seconds` starts at 0, one of an `area` has room for ½.
    """

    label: str
    marks: tuple[Mark, ...]
    guess: float | None = None
    retrained: Estimate | None = None
    start: float | None = None


def area(arm: Arm) -> Estimate | None:
    """The AUC of the attack by shadow models."""
    return None if arm.all is None else arm.all.auc


def arms_plot(title: str, arms: Sequence[Arm]) -> Plot:
    """The AUC of every arm with its interval: a row a method, alone and defended side by side, beside guessing and
    retraining.
    """
    return dots_plot(title, [arms_panel("AUC", arms, area, guess=0.5)], width=3.6)


def arms_panel(
    label: str,
    arms: Sequence[A],
    measure: Measure[A],
    *,
    guess: float | None = None,
    paper: Callable[[A], float | None] = lambda arm: None,
    line: str = "retrain",
) -> Panel:
    """One measure of arms. The method `line` is a line, and a row of its own only where nothing else was measured."""
    defenses = [arm.defense for arm in arms]
    rows = [arm for arm in arms if arm.method != line] or list(arms)
    retrained = next((measure(arm) for arm in arms if arm.method == line and arm not in rows), None)
    marks = []
    for arm in rows:
        names = method_label(arm.method), defense_label(arm.defense)
        marks.append(Mark(*names, look(arm.defense, defenses), measure(arm), paper(arm)))
    return Panel(label, tuple(marks), guess, retrained)


def dots_plot(title: str, panels: Sequence[Panel], *, width: float = 2.5) -> Plot:
    """Panels side by side that share their rows; those in which nothing was measured are left out."""
    used = [p for p in panels if any(m.estimate is not None for m in p.marks)]
    words = "; ".join(
        f"{panel.label}: "
        + ", ".join(f"{m.row} {m.series} {written(m.estimate)}" for m in panel.marks)
        + ("" if panel.retrained is None else f", retraining {written(panel.retrained)}")
        for panel in used
    )
    return Plot(title, f"{title}. {words}.", partial(_draw_dots, used, width))


def _draw_dots(panels: Sequence[Panel], width: float) -> Figure:
    marks = [mark for panel in panels for mark in panel.marks]
    series = list(dict.fromkeys(mark.series for mark in marks))
    rows = list(dict.fromkeys(mark.row for mark in marks))
    names = [brief(row, 42) for row in rows]
    wide = width * max(len(panels), 1) + 0.065 * max(map(len, names), default=0) + 0.4
    figure = blank(wide, 1.2 + len(rows) * (0.16 + 0.09 * len(series)))
    every = figure.subplots(1, len(panels), squeeze=False)[0] if panels else []
    for panel, axes in zip(panels, every, strict=True):
        for place, row in enumerate(rows):
            own = [mark for mark in panel.marks if mark.row == row]
            for i, mark in enumerate(own):
                height = place + (i - (len(own) - 1) / 2) * 0.8 / len(series)
                interval(axes, height, mark.estimate, mark.look, label=brief(mark.series), least=panel.start)
                if mark.paper is not None:
                    axes.plot(
                        [mark.paper],
                        [height],
                        marker="d",
                        ms=5,
                        mfc="none",
                        mec=mark.look.color,
                        ls="none",
                        label="paper",
                    )
            if place:
                axes.axhline(place - 0.5, color=GRID, lw=0.6)
        _references(axes, panel)
        axes.set_yticks(range(len(rows)), names if axes is every[0] else [""] * len(rows))
        axes.set(xlabel=panel.label, ylim=(len(rows) - 0.5, -0.5))
        if panel.start is not None:
            axes.set_xlim(left=panel.start)
        axes.tick_params(axis="y", length=0)
        axes.xaxis.set_major_locator(MaxNLocator(int(1.9 * width), steps=[1, 2, 5, 10]))
        axes.grid(True, axis="x")
    legend_below(figure)
    return figure


def _references(axes: Axes, panel: Panel) -> None:
    if panel.guess is not None:
        axes.axvline(panel.guess, color=FAINT, lw=1, ls=":", label="guessing")
    known = panel.retrained
    if known is not None:
        axes.axvline(known.value, color=INK, lw=1, ls="-.", label="retraining")
        if isfinite(known.low) and isfinite(known.high):
            axes.axvspan(known.low, known.high, color=FAINT, alpha=0.15, lw=0)


def attack_gallery(results: Pair) -> Gallery:
    """All attacks of a pair audit in one figure."""
    plain, best, retrained = (
        Look(color, "-", marker) for color, marker in ((INK, "o"), (FORGOTTEN, "o"), (NEVER, "s"))
    )
    marks = []
    for row in results.rows:
        kind = ("its strongest attacker", best) if row.name == results.strongest else ("the audited model", plain)
        marks.append(Mark(row.name, *kind, row.auc))
        if row.retrained:
            marks.append(Mark(row.name, "a retrained model", retrained, row.retrained[0]))
    text = (
        "The area under the curve of each attack with its interval; at ½, the dotted line, the attacker guesses. Far "
        "to the left leaks as much as far to the right."
    )
    plot = dots_plot("AUC of every attack", [Panel("AUC", tuple(marks), 0.5)], width=2.6)
    return Gallery("attacks", "All attacks at a glance", text, (plot,))


def reconstruction_gallery(results: Reconstruction) -> Gallery:
    """The PSNR of every attack on one model a figure, beside the best attack that saw nothing."""
    text = (
        "The mean PSNR of each attack with its interval, in decibels; further to the right is nearer to the true "
        "image. Orange: the attack shows more than is known without the models; black: that is not shown. Blue "
        "squares: the best attack that saw nothing."
    )
    return Gallery("psnr", "All attacks at a glance", text, tuple(_psnr(results, model) for model in results.models))


def _psnr(results: Reconstruction, model: AttackedModel) -> Plot:
    marks = []
    for attack in model.attacks:
        leaks = results.outcome_of(model, attack) == "does not hold"
        shown = Look(FORGOTTEN if leaks else INK, "-", "o")
        marks.append(Mark(attack.name, "shows more" if leaks else "not shown", shown, attack.scores.summary["psnr"]))
        if (blind := attack.blind.get(attack.beyond.best_blind)) is not None:
            marks.append(Mark(attack.name, "saw nothing", Look(NEVER, "-", "s"), blind.summary.get("psnr")))
    return dots_plot(f"PSNR after {model.name}", [Panel("PSNR in dB", tuple(marks))], width=3.6)


def cost_gallery(results: Shadow) -> Gallery:
    """The seconds of every arm in one figure, or no figure where no arm was timed."""

    def seconds(arm: Arm) -> Estimate | None:
        return None if arm.seconds is None else arm.seconds.unlearning

    title = "Time to unlearn one model"
    timed = [arm for arm in results.arms if seconds(arm) is not None]
    marks = arms_panel("seconds", timed, seconds, line="").marks
    plot = dots_plot(title, [Panel("seconds", marks, start=0.0)], width=3.6)
    text = "Seconds to unlearn one model, the mean with its 95 % interval."
    return Gallery("cost", title, text, (plot,) if timed else ())


def roc_gallery(results: Shadow, scale: Scale) -> Gallery:
    """The ROC curves of one method a figure, one curve a defence."""
    defenses = [arm.defense for arm in results.arms]
    plots = []
    for method in results.methods:
        arms = [arm for arm in results.arms if arm.method == method and arm.roc is not None]
        areas = "; ".join(f"{defense_label(arm.defense)}: AUC {written(area(arm))}" for arm in arms)
        axes = "logarithmic" if scale == "log" else "linear"
        words = f"ROC curves on {axes} axes for {method_label(method)}. {areas}."
        if arms:
            plots.append(Plot(brief(method_label(method)), words, partial(_draw_roc, method, arms, scale, defenses)))
    common = (
        "How many forgotten examples an attacker finds (true positives) when accepting that so many unseen ones are "
        "accused (false positives). On the diagonal the attacker guesses; the further above it, the larger the leak. "
        "Points with bars are the true-positive rates that the audit resolves, with their 95 % intervals."
    )
    small = (
        " Logarithmic axes show the attacker who must seldom be wrong. In the grey area fewer than "
        f"{RESOLUTION} false positives remain: curves there are noise, and no rate is stated."
    )
    if scale == "linear":
        return Gallery("roc", "ROC curves", common, tuple(plots))
    return Gallery("roc-log", "ROC curves at small false-positive rates", common + small, tuple(plots))


def _draw_roc(method: str, arms: list[Arm], scale: Scale, defenses: list[str | None]) -> Figure:
    figure = blank(4.0, 3.7)
    axes = figure.subplots()
    negatives = min((arm.all.negatives for arm in arms if arm.all is not None), default=0) or 100
    floor = max(min(1 / negatives, 0.01), 1e-6) if scale == "log" else 0.0
    axes.plot([floor, 1], [floor, 1], color=FAINT, lw=0.8, ls=":")
    for arm in arms:
        shown = look(arm.defense, defenses)
        points = [] if arm.roc is None else list(zip(arm.roc.fpr, arm.roc.tpr, strict=True))
        # A logarithmic axis has no 0: what lies there is drawn at its edge, where the curve starts.
        x, y = ([max(point[i], floor) for point in points] for i in (0, 1))
        axes.plot(x, y, color=shown.color, ls=shown.line, lw=1.4, label=brief(defense_label(arm.defense)))
        for rate in () if arm.all is None else arm.all.rates:
            if rate.tpr is not None and floor <= min(rate.fpr, rate.tpr.value):
                interval(axes, rate.fpr, rate.tpr, shown, upright=True, least=floor)
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
    legend_below(figure)
    return figure


def histogram_gallery(results: Shadow) -> Gallery:
    """The log likelihood ratio of one arm a figure, under both hypotheses: forgotten, and never seen."""
    text = (
        "The attacker's evidence for every example, a log likelihood ratio: to the right, evidence that it was "
        "forgotten; to the left, that it was never seen. Where the two shapes lie on top of each other, nothing can be "
        "learned. The outermost bars may stand for all that lies further out."
    )
    plots = tuple(
        Plot(
            arm_label(arm),
            f"Histograms of the log likelihood ratio of forgotten and of never-seen examples under {arm_label(arm)}, "
            f"from {found.edges[0]:.3g} to {found.edges[-1]:.3g}; AUC {written(area(arm))}.",
            partial(_draw_histogram, arm, found),
        )
        for arm in results.arms
        if (found := arm.histogram) is not None
    )
    return Gallery("histogram", "The two hypotheses", text, plots)


def _draw_histogram(arm: Arm, histogram: Histogram) -> Figure:
    figure = blank(4.0, 2.8)
    axes = figure.subplots()
    for values, color, line, label in (
        (histogram.never, NEVER, "--", "never seen"),
        (histogram.forgotten, FORGOTTEN, "-", "forgotten"),
    ):
        axes.stairs(values, histogram.edges, fill=True, color=color, alpha=0.18)
        axes.stairs(values, histogram.edges, color=color, ls=line, lw=1.4, label=label)
    axes.axvline(0, color=FAINT, lw=0.8, ls=":")
    axes.set(xlabel="log likelihood ratio", ylabel="density", title=_short(arm))
    legend_below(figure)
    return figure


def risk_gallery(results: Shadow) -> Gallery:
    """The gradient norms of forgotten examples against the attacker's scores, one arm a figure."""
    text = (
        "Every point is a forgotten example: how long the gradient of its loss is (to the right, longer), and the "
        "attacker's evidence that it was forgotten (upwards, stronger). The black line is the median in ten groups of "
        "equal size, its bars hold the middle half of each. Where the line rises, examples with long gradients are the "
        "ones at risk."
    )
    plots = []
    for arm in results.arms:
        if arm.risk is not None and arm.risk.score:
            groups = _groups(arm.risk)
            words = (
                f"Scatter of {len(arm.risk.score)} forgotten examples under {arm_label(arm)}: gradient norm against "
                f"attack score. The median score is {groups[0][2]:.3g} for the shortest gradients and "
                f"{groups[-1][2]:.3g} for the longest."
            )
            plots.append(Plot(arm_label(arm), words, partial(_draw_risk, arm, arm.risk, groups)))
    return Gallery("risk", "Gradient norm and risk", text, tuple(plots))


def _draw_risk(arm: Arm, risk: Risk, groups: list[tuple[float, float, float, float]]) -> Figure:
    figure = blank(4.0, 2.8)
    axes = figure.subplots()
    axes.plot(risk.gradient_norm, risk.score, ls="none", marker="o", ms=2.4, mec="none", mfc=(NEVER, 0.35))
    axes.plot([x for x, *_ in groups], [median for _, _, median, _ in groups], color=INK, lw=1.4)
    for x, low, _, high in groups:
        axes.plot([x, x], [low, high], color=INK, lw=1)
    if min(risk.gradient_norm) > 0:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(numticks=6))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axes.minorticks_off()
    axes.set(
        xlabel=f"norm of the forget gradient, {risk.model} model", ylabel="log likelihood ratio", title=_short(arm)
    )
    axes.grid(True)
    return figure


def _groups(risk: Risk) -> list[tuple[float, float, float, float]]:
    """(median norm, lower quartile, median, upper quartile of the score) of ten groups of rising norm."""
    order = np.argsort(risk.gradient_norm, kind="stable")
    x, y = np.asarray(risk.gradient_norm)[order], np.asarray(risk.score)[order]
    found = []
    for part in np.array_split(np.arange(len(x)), min(10, len(x))):
        low, middle, high = (float(q) for q in np.quantile(y[part], (0.25, 0.5, 0.75)))
        found.append((float(np.median(x[part])), low, middle, high))
    return found


def _short(arm: Arm) -> str:
    return f"{brief(method_label(arm.method), 22)}, {brief(defense_label(arm.defense), 22)}"
