"""The attacks of a pair audit side by side, with their intervals."""

from __future__ import annotations

from functools import partial

from matplotlib.figure import Figure

from .labels import brief
from .measures import Estimate, written
from .pair_results import PairResults
from .plots import Gallery, Plot
from .style import FAINT, FORGOTTEN, INK, NEVER, blank

_TEXT = (
    "The area under the curve of each attack with its interval; at ½, the dotted line, the attacker guesses. Far to "
    "the left leaks as much as far to the right. Black: the audited model, orange its strongest attacker. Blue "
    "squares, where there are any: the same attack on a retrained model."
)


def attack_gallery(results: PairResults) -> Gallery:
    """One figure of all attacks."""
    words = "; ".join(f"{row.name}: {written(row.auc)}" for row in results.rows)
    plot = Plot("AUC of every attack", f"AUC of every attack: {words}.", partial(_draw, results))
    return Gallery("attacks", "All attacks at a glance", _TEXT, (plot,))


def _draw(results: PairResults) -> Figure:
    rows = results.rows
    figure = blank(5.6, 1.0 + 0.26 * len(rows))
    axes = figure.subplots()
    axes.axvline(0.5, color=FAINT, lw=0.8, ls=":")
    for place, row in enumerate(rows):
        shades: tuple[tuple[Estimate | None, str, str, float], ...] = (
            (row.auc, FORGOTTEN if row.name == results.strongest else INK, "o", 0.0),
            (row.retrained, NEVER, "s", 0.25),
        )
        for estimate, color, marker, shift in shades:
            if estimate is None or estimate.value is None:
                continue
            axes.plot([estimate.value], [place + shift], color=color, marker=marker, ms=4.5)
            if estimate.low is not None and estimate.high is not None:
                axes.plot([estimate.low, estimate.high], [place + shift] * 2, color=color, lw=1.4)
    axes.set_yticks(range(len(rows)), [brief(row.name, 42) for row in rows])
    axes.set(xlabel="AUC", xlim=(0, 1), ylim=(len(rows) - 0.3, -0.6))
    axes.grid(True, axis="x")
    return figure
