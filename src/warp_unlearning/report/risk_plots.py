"""Forget gradient norm against per-sample risk: are the examples with the longest gradients those that leak most?"""

from __future__ import annotations

from functools import partial

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from .audit_shapes import Curve
from .histogram_plots import title_of
from .labels import arm_label
from .plots import Gallery, Plot
from .shadow_arm import Arm
from .shadow_results import ShadowResults
from .style import INK, NEVER, blank

GROUPS = 10
_TEXT = (
    "Every point is a forgotten example: how long the gradient of its loss was (to the right, longer), and the "
    "attacker's evidence that it was forgotten (upwards, stronger). The black line is the median in ten groups of "
    "equal size, its bars hold the middle half of each. Where the line rises, examples with long gradients are the "
    "ones at risk."
)


def risk_gallery(results: ShadowResults) -> Gallery:
    """One figure an arm."""
    plots = tuple(_plot(arm, arm.risk) for arm in results.arms if arm.risk is not None)
    return Gallery("risk", "Gradient norm and risk", _TEXT, plots)


def _plot(arm: Arm, risk: Curve) -> Plot:
    groups = _groups(risk)
    return Plot(
        arm_label(arm),
        f"Scatter of {len(risk.x)} forgotten examples under {arm_label(arm)}: gradient norm against attack score. The "
        f"median score is {groups[0][2]:.3g} for the shortest gradients and {groups[-1][2]:.3g} for the longest.",
        partial(_draw, arm, risk),
    )


def _draw(arm: Arm, risk: Curve) -> Figure:
    figure = blank(4.0, 2.8)
    axes = figure.subplots()
    axes.plot(risk.x, risk.y, ls="none", marker="o", ms=2.4, mec="none", mfc=NEVER, alpha=0.35)
    groups = _groups(risk)
    axes.plot([x for x, *_ in groups], [median for _, _, median, _ in groups], color=INK, lw=1.4)
    for x, low, _, high in groups:
        axes.plot([x, x], [low, high], color=INK, lw=1)
    if min(risk.x) > 0:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(numticks=6))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axes.minorticks_off()
    axes.set(xlabel="norm of the forget gradient", ylabel="log likelihood ratio", title=title_of(arm))
    axes.grid(True)
    return figure


def _groups(risk: Curve) -> list[tuple[float, float, float, float]]:
    """(median norm, lower quartile, median, upper quartile of the score) of groups of rising norm."""
    order = np.argsort(risk.x, kind="stable")
    x, y = np.asarray(risk.x)[order], np.asarray(risk.y)[order]
    parts = np.array_split(np.arange(len(x)), min(GROUPS, len(x)))
    found = []
    for part in parts:
        low, middle, high = (float(q) for q in np.quantile(y[part], (0.25, 0.5, 0.75)))
        found.append((float(np.median(x[part])), low, middle, high))
    return found
