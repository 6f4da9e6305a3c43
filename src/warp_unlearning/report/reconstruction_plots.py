"""The PSNR of every attack of a reconstruction side by side, with intervals and the best attack that saw nothing."""

from __future__ import annotations

from functools import partial

from matplotlib.figure import Figure

from .labels import brief
from .measures import Estimate, written
from .plots import Gallery, Plot
from .reconstruction_results import AttackedModel, ReconstructionResults
from .style import FORGOTTEN, INK, NEVER, blank

_TEXT = (
    "The mean PSNR of each attack with its interval, in decibels; further to the right is nearer to the true image. "
    "Orange: the attack shows more than is known without the models; black: that is not shown. Blue squares: the best "
    "attack that saw nothing."
)


def reconstruction_gallery(results: ReconstructionResults) -> Gallery:
    """One figure for each model."""
    return Gallery("psnr", "All attacks at a glance", _TEXT, tuple(_plot(model) for model in results.models))


def _plot(model: AttackedModel) -> Plot:
    words = "; ".join(f"{attack.name}: {written(attack.scores['psnr'], digits=2)}" for attack in model.attacks)
    return Plot(f"PSNR after {model.name}", f"PSNR after {model.name}, in dB: {words}.", partial(_draw, model))


def _draw(model: AttackedModel) -> Figure:
    figure = blank(5.6, 1.1 + 0.3 * len(model.attacks))
    axes = figure.subplots()
    for place, attack in enumerate(model.attacks):
        color = FORGOTTEN if attack.outcome == "does not hold" else INK
        blind = attack.blind.get(attack.best_blind, {}).get("psnr")
        shades: tuple[tuple[Estimate | None, str, str, float], ...] = (
            (attack.scores["psnr"], color, "o", 0.0),
            (blind, NEVER, "s", 0.25),
        )
        for estimate, shade, marker, shift in shades:
            if estimate is None or estimate.value is None:
                continue
            axes.plot([estimate.value], [place + shift], color=shade, marker=marker, ms=4.5)
            if estimate.low is not None and estimate.high is not None:
                axes.plot([estimate.low, estimate.high], [place + shift] * 2, color=shade, lw=1.4)
    axes.set_yticks(range(len(model.attacks)), [brief(attack.name, 42) for attack in model.attacks])
    axes.set(xlabel="PSNR in dB", ylim=(len(model.attacks) - 0.3, -0.6))
    axes.set_title(brief(model.name, 60))
    axes.grid(True, axis="x")
    return figure
