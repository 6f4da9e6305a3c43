"""Six axes of privacy and utility, one radar chart a method.

Black-box AUC and TPR, AUC on the most memorised examples, white-box AUC and TPR, and test accuracy. Privacy is drawn on
a scale of its own that does not depend on the other methods: 1 where the attacker only guesses, 0 where the attacker is
never wrong,

    AUC: 2 − 2 max(AUC, 1 − AUC),    TPR at f: min(1, (1 − TPR) / (1 − f)).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil, cos, pi, sin
from textwrap import fill
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .labels import brief, defense_label, method_label
from .measures import NOT_MEASURED, Estimate, Rate, written
from .plots import Gallery, Plot
from .roc_plots import SHOWN
from .shadow_arm import Arm
from .shadow_results import ShadowResults
from .style import FAINT, GRID, INK, Look, blank, look

_TEXT = (
    "Six axes: what an attacker sees who holds only the outputs of the model (black box: AUC, and true-positive rate "
    "at a small false-positive rate), the same on the most memorised examples, what an attacker sees who holds the "
    "weights before and after (white box, by the gradient-difference test, mean over pairs of models, with a threshold "
    "for each pair), and the accuracy on test examples. Outward is better: on the five axes of privacy the rim is an "
    "attacker who only guesses, the centre one who is never wrong; accuracy runs from 0 to 100 %. The axes are "
    "absolute, not stretched to the range of the methods shown. Bars are 95 % intervals."
)

Directions = list[tuple[float, float]]


@dataclass(frozen=True)
class Axis:
    """One axis; `value` has 1 for the best there is."""

    label: str
    value: Callable[[Arm], Estimate | None]


def radar_axes(results: ShadowResults) -> tuple[Axis, ...]:
    """The six axes, with the smallest false-positive rates that the results resolve."""
    slices = [name for arm in results.arms for name, score in arm.slices.items() if score is not None]
    memorised = slices[0] if slices else None
    black = _smallest([arm.score.rates for arm in results.arms if arm.score is not None])
    white = _smallest([arm.gradient_test.rates for arm in results.arms if arm.gradient_test is not None])
    return (
        Axis("black-box\nAUC", lambda arm: None if arm.score is None else _from_area(arm.score.auc)),
        Axis(
            f"black-box TPR\n{_at(black)}",
            lambda arm: None if arm.score is None or black is None else _from_rate(arm.score.rate(black)),
        ),
        Axis(fill(f"AUC, {brief(memorised or 'most memorised', 30)}", 14), partial(_from_slice, memorised)),
        Axis("white-box\nAUC", lambda arm: None if arm.gradient_test is None else _from_area(arm.gradient_test.auc)),
        Axis(
            f"white-box TPR\n{_at(white)}",
            lambda arm: (
                None if arm.gradient_test is None or white is None else _from_rate(arm.gradient_test.rate(white))
            ),
        ),
        Axis("test\naccuracy", lambda arm: None if arm.accuracy is None else arm.accuracy.test),
    )


def radar_gallery(results: ShadowResults) -> Gallery:
    """One figure a method."""
    axes = radar_axes(results)
    defenses = [arm.defense for arm in results.arms]
    plots = tuple(_plot(method, results.arms_of(method), axes, defenses) for method in results.methods)
    return Gallery("radar", "Privacy and utility on six axes", _TEXT, plots)


def _plot(method: str, arms: tuple[Arm, ...], axes: tuple[Axis, ...], defenses: list[str | None]) -> Plot:
    words = "; ".join(
        f"{defense_label(arm.defense)}: "
        + ", ".join(f"{axis.label} {written(axis.value(arm), digits=2)}".replace("\n", " ") for axis in axes)
        for arm in arms
    )
    return Plot(
        brief(method_label(method)),
        f"Radar chart for {method_label(method)}, 1 is best. {words}.",
        partial(_draw, method, arms, axes, defenses),
    )


def _draw(method: str, arms: tuple[Arm, ...], axes: tuple[Axis, ...], defenses: list[str | None]) -> Figure:
    figure = blank(4.0, 3.4 + 0.2 * ceil(len(arms) / 2))
    plane = figure.subplots()
    directions = [(cos(angle), sin(angle)) for angle in (pi / 2 - 2 * pi * i / len(axes) for i in range(len(axes)))]
    _frame(plane, directions, axes, arms)
    for arm in arms:
        _polygon(plane, directions, [axis.value(arm) for axis in axes], arm, look(arm.defense, defenses))
    figure.suptitle(brief(method_label(method)), fontsize=9.5)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def _polygon(plane: Axes, directions: Directions, found: list[Estimate | None], arm: Arm, shown: Look) -> None:
    # A NaN leaves a gap, so that no line is drawn across an axis that was not measured.
    radii = [float("nan") if e is None or e.value is None else e.value for e in found]
    corners = [(r * x, r * y) for r, (x, y) in zip(radii, directions, strict=True)]
    plane.plot(
        *zip(*corners, corners[0], strict=True),
        color=shown.color,
        ls=shown.line,
        marker=shown.marker,
        ms=3.5,
        lw=1.3,
        label=brief(defense_label(arm.defense)),
    )
    for estimate, (x, y) in zip(found, directions, strict=True):
        if estimate is not None and estimate.low is not None and estimate.high is not None:
            ends = [min(max(end, 0.0), 1.0) for end in (estimate.low, estimate.high)]
            along = [r * x for r in ends], [r * y for r in ends]
            plane.plot(*along, color=shown.color, lw=2.4, alpha=0.4, solid_capstyle="butt")


def _frame(plane: Axes, directions: Directions, axes: tuple[Axis, ...], arms: tuple[Arm, ...]) -> None:
    for level in (0.25, 0.5, 0.75, 1.0):
        corners = [(level * x, level * y) for x, y in (*directions, directions[0])]
        plane.plot(*zip(*corners, strict=True), color=FAINT if level == 1 else GRID, lw=0.8 if level == 1 else 0.6)
    for axis, (x, y) in zip(axes, directions, strict=True):
        plane.plot([0, x], [0, y], color=GRID, lw=0.6)
        none = all(axis.value(arm) is None for arm in arms)
        side: Literal["left", "center", "right"] = "center" if abs(x) < 0.1 else "left" if x > 0 else "right"
        plane.text(
            1.06 * x,
            1.06 * y,
            f"{axis.label}\n({NOT_MEASURED})" if none else axis.label,
            fontsize=8,
            color=FAINT if none else INK,
            ha=side,
            va="bottom" if y > 0.9 else "top" if y < -0.9 else "center",
        )
    plane.set(aspect="equal", xlim=(-1.64, 1.64), ylim=(-1.3, 1.3))
    plane.set_axis_off()


def _smallest(rates: list[tuple[Rate, ...]]) -> float | None:
    """The smallest of the rates shown that some arm resolves."""
    resolved = {rate.fpr for each in rates for rate in each if rate.resolved}
    return next((fpr for fpr in SHOWN if any(abs(fpr - known) < 1e-9 for known in resolved)), None)


def _at(fpr: float | None) -> str:
    return "at a small FPR" if fpr is None else f"at {100 * fpr:g} % FPR"


def _from_area(area: Estimate) -> Estimate:
    return area.strength.mapped(-2, 2)


def _from_rate(rate: Rate | None) -> Estimate | None:
    if rate is None or rate.tpr is None:
        return None
    found = rate.tpr.mapped(-1 / (1 - rate.fpr), 1 / (1 - rate.fpr))
    return Estimate(*(None if x is None else min(x, 1.0) for x in (found.value, found.low, found.high)))


def _from_slice(name: str | None, arm: Arm) -> Estimate | None:
    score = arm.slices.get(name) if name is not None else None
    return None if score is None else _from_area(score.auc)
