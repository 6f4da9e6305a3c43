"""A figure of the floor against the spread of the factors."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..data.files import write_atomically
from ..errors import InputError

_FORMATS = ("png", "svg", "pdf")
_CURVES = (
    ("gain", "quadrature_gain", "as drawn", "#d55e00", "-", "o"),
    ("matched_gain", "matched_quadrature_gain", "energy-matched", "#0072b2", "--", "s"),
)


def plot_floor(found: Mapping[str, Any], path: Path | str) -> None:
    """Save log ξ_tele/ξ₀ against the spread, `found` as `ReconstructionFloor.as_json` gives it, as png, svg or pdf.

    Bars are two standard errors of the Monte Carlo; crosses the quadrature, where there is one.
    """
    target = Path(path)
    kind = target.suffix.lstrip(".").lower()
    if kind not in _FORMATS:
        raise InputError(f"the figure {target.name} has no known ending; give one of .{', .'.join(_FORMATS)}")
    write_atomically(target, figure_bytes(found, kind))


def figure_bytes(found: Mapping[str, Any], kind: str) -> bytes:
    """The figure as a file's content."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows = sorted(found["rows"], key=lambda row: float(row["spread"]))
    x = [row["spread"] for row in rows]
    with rc_context({"svg.hashsalt": "warp bounds", "svg.fonttype": "none", "font.size": 9.0}):
        figure = Figure(figsize=(4.6, 3.2), layout="constrained")
        axes = figure.add_subplot()
        axes.axhline(0.0, color="#6b6b6b", linewidth=0.7)
        for sampled, exact, label, color, line, marker in _CURVES:
            y = [row[sampled]["value"] for row in rows]
            bars = [2 * row[sampled]["standard_error"] for row in rows]
            axes.errorbar(x, y, yerr=bars, label=label, color=color, linestyle=line, marker=marker, markersize=4)
            if all(row[exact] is not None for row in rows):
                label = "" if sampled == "gain" else "by quadrature"
                axes.plot(x, [row[exact] for row in rows], "x", color="#1b1b1b", markersize=6, label=label)
        axes.set_xlabel(f"spread of the {found['law'].replace('_', ' ')} factors")
        axes.set_ylabel("log of floor with / without teleportation")
        axes.set_title("Relative, inside the model's assumptions; no guarantee", fontsize=8.5)
        axes.legend(frameon=False)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        held = io.BytesIO()
        undated: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
        figure.savefig(held, format=kind, dpi=150, metadata=undated.get(kind))
    return held.getvalue()
