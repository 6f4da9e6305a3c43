"""The figure of `warp bounds`: the floor against the spread of the factors."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from ..bounds.information import MonteCarlo
from ..bounds.report import ReconstructionFloor
from ..data.files import write_atomically
from ..errors import InputError
from .drawing import FAINT, FORGOTTEN, INK, NEVER, blank, house_style

_FORMATS = ("png", "svg", "pdf")
_CURVES = (
    ("gain", "quadrature_gain", "as drawn", FORGOTTEN, "-", "o"),
    ("matched_gain", "matched_quadrature_gain", "energy-matched", NEVER, "--", "s"),
)


def plot_floor(floor: ReconstructionFloor, path: Path | str) -> None:
    """Save log ξ_tele/ξ₀ against the spread as png, svg or pdf.

    Bars are two standard errors of the Monte Carlo; crosses the quadrature, where there is one.
    """
    target = Path(path)
    kind = target.suffix.lstrip(".").lower()
    if kind not in _FORMATS:
        raise InputError(f"the figure {target.name} has no known ending; give one of .{', .'.join(_FORMATS)}")
    rows = sorted(floor.rows, key=lambda row: row.spread)
    x = [row.spread for row in rows]
    with house_style():
        figure = blank(4.6, 3.2)
        axes = figure.add_subplot()
        axes.axhline(0.0, color=FAINT, linewidth=0.7)
        for sampled, exact, label, color, line, marker in _CURVES:
            gains: list[MonteCarlo] = [getattr(row, sampled) for row in rows]
            y, bars = [gain.value for gain in gains], [2 * gain.standard_error for gain in gains]
            axes.errorbar(x, y, yerr=bars, label=label, color=color, linestyle=line, marker=marker, markersize=4)
            sums = [getattr(row, exact) for row in rows]
            if None not in sums:
                label = "" if sampled == "gain" else "by quadrature"
                axes.plot(x, sums, "x", color=INK, markersize=6, label=label)
        axes.set_xlabel(f"spread of the {floor.law.replace('_', ' ')} factors")
        axes.set_ylabel("log of floor with / without teleportation")
        axes.set_title("Relative, inside the model's assumptions; no guarantee", fontsize=8.5)
        axes.legend()
        buffer = io.BytesIO()
        undated: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
        figure.savefig(buffer, format=kind, dpi=150, metadata=undated.get(kind))
    write_atomically(target, buffer.getvalue())
