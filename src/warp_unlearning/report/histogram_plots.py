"""Histograms of the log likelihood ratio under the two hypotheses: forgotten, and never seen."""

from __future__ import annotations

from functools import partial

from matplotlib.figure import Figure

from .audit_shapes import Histogram
from .labels import arm_label, brief, defense_label, method_label
from .measures import written
from .plots import Gallery, Plot
from .shadow_arm import Arm
from .shadow_results import ShadowResults
from .style import FAINT, FORGOTTEN, NEVER, blank

_TEXT = (
    "The attacker's evidence for every example, a log likelihood ratio: to the right, evidence that it was forgotten; "
    "to the left, that it was never seen. Where the two shapes lie on top of each other, nothing can be learned. "
    "The outermost bars may stand for all that lies further out."
)


def histogram_gallery(results: ShadowResults) -> Gallery:
    """One figure an arm."""
    plots = tuple(_plot(arm, arm.histogram) for arm in results.arms if arm.histogram is not None)
    return Gallery("histogram", "The two hypotheses", _TEXT, plots)


def _plot(arm: Arm, histogram: Histogram) -> Plot:
    area = written(None if arm.score is None else arm.score.auc)
    return Plot(
        arm_label(arm),
        f"Histograms of the log likelihood ratio of forgotten and of never-seen examples under {arm_label(arm)}, "
        f"from {histogram.edges[0]:.3g} to {histogram.edges[-1]:.3g}; AUC {area}.",
        partial(_draw, arm, histogram),
    )


def _draw(arm: Arm, histogram: Histogram) -> Figure:
    figure = blank(4.0, 2.8)
    axes = figure.subplots()
    for values, color, line, label in (
        (histogram.never, NEVER, "--", "never seen"),
        (histogram.forgotten, FORGOTTEN, "-", "forgotten"),
    ):
        axes.stairs(values, histogram.edges, fill=True, color=color, alpha=0.18)
        axes.stairs(values, histogram.edges, color=color, ls=line, lw=1.4, label=label)
    axes.axvline(0, color=FAINT, lw=0.8, ls=":")
    axes.set(xlabel="log likelihood ratio", ylabel="density", title=title_of(arm))
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def title_of(arm: Arm) -> str:
    """The arm on one line of a small figure."""
    return f"{brief(method_label(arm.method), 22)}, {brief(defense_label(arm.defense), 22)}"
