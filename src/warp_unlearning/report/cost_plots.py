"""What unlearning one model takes, by method and defence."""

from __future__ import annotations

from functools import partial

from matplotlib.figure import Figure

from .labels import arm_label, brief, defense_label, method_label
from .measures import written
from .plots import Gallery, Plot
from .shadow_arm import Arm
from .shadow_results import ShadowResults
from .style import blank, look

_TEXT = "Seconds to unlearn one model, the mean with its 95 % interval."


def cost_gallery(results: ShadowResults) -> Gallery:
    """One figure, or none where no arm was timed."""
    timed = [
        arm
        for arm in results.arms
        if arm.seconds and arm.seconds.unlearning and arm.seconds.unlearning.value is not None
    ]
    if not timed:
        return Gallery("cost", "Time to unlearn one model", _TEXT, ())
    words = "; ".join(
        f"{arm_label(arm)} {written(None if arm.seconds is None else arm.seconds.unlearning, digits=2, unit=' s')}"
        for arm in timed
    )
    plot = Plot("Time to unlearn one model", f"Seconds to unlearn one model: {words}.", partial(_draw, timed))
    return Gallery("cost", "Time to unlearn one model", _TEXT, (plot,))


def _draw(arms: list[Arm]) -> Figure:
    figure = blank(5.2, 1.0 + 0.21 * len(arms))
    axes = figure.subplots()
    defenses = [arm.defense for arm in arms]
    for row, arm in enumerate(arms):
        found = None if arm.seconds is None else arm.seconds.unlearning
        if found is None or found.value is None:
            continue
        shown = look(arm.defense, defenses)
        axes.plot([found.value], [row], color=shown.color, marker=shown.marker, ms=4.5)
        if found.low is not None and found.high is not None:
            axes.plot([max(found.low, 0), found.high], [row, row], color=shown.color, lw=1.4)
    names = [f"{brief(method_label(arm.method), 16)}, {brief(defense_label(arm.defense), 18)}" for arm in arms]
    axes.set_yticks(range(len(arms)), names)
    axes.set(xlabel="seconds", ylim=(len(arms) - 0.4, -0.6))
    axes.set_xlim(left=0)
    axes.grid(True, axis="x")
    return figure
