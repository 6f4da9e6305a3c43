"""Figure 11: the attacker who fits image and change of basis together, by its prior and by the defender's spread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..plots import Plot
from .agreement import direction, shown
from .extent import missing_text, rows_text
from .image_rows import ImageRow, paired, read_rows
from .markdown import bullets, table
from .panels import Line, lines_plot
from .rendered import Rendered, rendered
from .study import read_about

_NOTE = (
    "The paper prints no number for its Figure 11 and varies one σ. It calls it the width of the attacker's prior, "
    "and also what the defender controls; here they are two axes. It says that σ = 0 is the attacker who does not "
    "adapt, and that at σ = 0 the adaptive attacker does better than that one: both cannot be."
)


def render(results: Mapping[str, Any], *, folder: str = "figures") -> Rendered:
    """PSNR by the attacker's σ and the defender's spread, and the directions that the paper states."""
    whole, about = read_about(results)
    rows = read_rows(whole["rows"])
    spreads = sorted({row.spread for row in rows if row.spread is not None})
    columns = _columns(rows)
    heads = ["defender's spread", *(_head(attack, sigma) for attack, sigma in columns)]
    lines = [[f"{spread:g}", *(_cell(_find(rows, a, s, spread)) for a, s in columns)] for spread in spreads]
    return rendered(
        "Adaptive reconstruction",
        about,
        _NOTE,
        "PSNR in dB; own-target share.",
        table(heads, lines),
        bullets(_claims(rows, spreads)),
        missing_text(about),
        plots={"adaptive": _plot(rows, spreads)},
        folder=folder,
        intro=rows_text(about, len(rows)),
    )


def _columns(rows: tuple[ImageRow, ...]) -> list[tuple[str, float | None]]:
    found = dict.fromkeys((row.attack, row.sigma) for row in rows)
    return sorted(found, key=lambda pair: (pair[0] != "adaptive", pair[1] or 0.0))


def _head(attack: str, sigma: float | None) -> str:
    names = {"inversion": "as it is", "canonical": "undone in closed form"}
    return names.get(attack, attack) if sigma is None else f"σ = {sigma:g}"


def _find(rows: tuple[ImageRow, ...], attack: str, sigma: float | None, spread: float | None) -> ImageRow | None:
    return next((r for r in rows if (r.attack, r.sigma, r.spread) == (attack, sigma, spread)), None)


def _cell(row: ImageRow | None) -> str:
    if row is None or row.failed:
        return "not measured" if row is None else "failed"
    share = "" if row.share is None else f"; {shown(row.share, digits=2)}"
    return f"{shown(row.mean('psnr'), digits=1)}{share}"


def _claims(rows: tuple[ImageRow, ...], spreads: list[float]) -> list[str]:
    """The paper: errors grow with σ, and at the largest σ adapting gains nothing."""
    sigmas = sorted({row.sigma for row in rows if row.sigma is not None})
    if len(sigmas) < 2 or not spreads:
        return ["σ was not varied."]
    texts = []
    for spread in spreads:
        first, last = (_find(rows, "adaptive", sigma, spread) for sigma in (sigmas[0], sigmas[-1]))
        plain = _find(rows, "inversion", None, spread)
        worse, gain = paired(last, first, "feature_mse"), paired(last, plain, "psnr")
        hurts = direction(worse, falls="σ hurts the attacker, as in the paper", rises="σ helps, unlike in the paper")
        helps = direction(
            gain, falls="adapting helps, unlike in the paper", rises="adapting hurts, as the paper allows"
        )
        texts.append(
            f"spread {spread:g}: feature MSE at σ = {sigmas[-1]:g} less that at σ = {sigmas[0]:g}: "
            f"{shown(worse, digits=2)}, {hurts}; PSNR of the adaptive attacker at σ = {sigmas[-1]:g} less that of one "
            f"who does not adapt, dB: {shown(gain, digits=2)}, {helps}"
        )
    if len(spreads) > 1:
        ends = [_find(rows, "adaptive", sigmas[-1], spread) for spread in (spreads[0], spreads[-1])]
        lost = paired(ends[0], ends[1], "psnr")
        texts.append(
            f"PSNR at σ = {sigmas[-1]:g}, narrowest spread less widest, dB: {shown(lost, digits=2)}, "
            f"{direction(lost, falls='a wide spread hurts this attacker', rises='a wide spread helps this attacker')}"
        )
    return texts


def _plot(rows: tuple[ImageRow, ...], spreads: list[float]) -> Plot:
    def lines(metric: str) -> list[Line]:
        return [
            Line(
                f"spread {spread:g}",
                "cob",
                tuple(
                    (row.sigma, row.mean(metric))
                    for row in rows
                    if row.attack == "adaptive" and row.spread == spread and row.sigma is not None
                ),
            )
            for spread in spreads
        ]

    panels = [("feature MSE", lines("feature_mse")), ("PSNR, dB", lines("psnr"))]
    return lines_plot("Adaptive reconstruction by the attacker's σ", "attacker's σ", panels)
