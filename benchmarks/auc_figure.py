"""Draw docs/figures/auc.svg: what U-LiRA finds of each method alone and defended, from the committed results.

Run it as `python benchmarks/auc_figure.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib.figure import Figure

ROOT = Path(__file__).parent.parent
STUDIES = {
    "digits, an MLP": "results/small/digits",
    "Fashion-MNIST (5,000 images), a small ResNet": "results/small/fashion_mnist",
}
RETRAINED = "results/small/digits_retrained"
METHODS = {
    "ngp": "NGP",
    "scrub": "SCRUB",
    "salun": "SalUn",
    "pgu": "PGU",
    "bad_teacher": "bad teacher",
    "srf_on": "SRF-ON",
}
ARMS = {"": ("alone", "#444444", "o"), " + warp": ("+ warp (the paper's)", "#c8102e", "s")}
ARMS |= {" + warp_guarded": ("+ warp_guarded (ours)", "#1f6fb2", "^")}


def areas(folder: str) -> dict[str, Any]:
    """The AUC over all forgotten examples, by the name of the arm."""
    arms = json.loads((ROOT / folder / "results.json").read_text())["arms"]
    return {arm["name"]: arm["all"]["auc"] for arm in arms}


def draw() -> Figure:
    """Both studies, side by side."""
    figure = Figure(figsize=(9.2, 3.7), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    rows = [*METHODS.values(), "full retraining"]
    for panel, (title, folder) in zip(panels, STUDIES.items(), strict=True):
        found = areas(folder)
        for i, name in enumerate(METHODS):
            for j, (suffix, (label, colour, marker)) in enumerate(ARMS.items()):
                _point(panel, found[name + suffix], i + 0.24 * (j - 1), label if i == 0 else None, colour, marker)
        panel.axvline(0.5, color="#888888", lw=1, ls="--")
        panel.set_title(title, fontsize=9, loc="left")
        panel.set_xlabel("AUC of U-LiRA (0.5 is guessing), 95 % intervals", fontsize=8.5)
        panel.tick_params(labelsize=8.5)
        panel.grid(axis="x", color="#eeeeee")
        panel.set_axisbelow(True)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    _point(panels[0], areas(RETRAINED)["retrain"], len(METHODS), None, "#2a8c4a", "D")
    panels[1].text(0.51, len(METHODS), "not measured", va="center", fontsize=8.5, color="#777777")
    panels[0].set_yticks(range(len(rows)), rows)
    panels[0].set_ylim(len(rows) - 0.5, -0.6)
    panels[0].set_xlim(0.48, 0.92)
    panels[1].legend(fontsize=8, frameon=False, loc="center right")
    return figure


def _point(panel: Any, area: Any, y: float, label: str | None, colour: str, marker: str) -> None:
    ends = [[area["value"] - area["low"]], [area["high"] - area["value"]]]
    panel.errorbar(area["value"], y, xerr=ends, fmt=marker, color=colour, ms=4.5, lw=1.3, capsize=2, label=label)


if __name__ == "__main__":
    matplotlib.rcParams["svg.hashsalt"] = "auc"
    matplotlib.rcParams["svg.fonttype"] = "none"
    matplotlib.rcParams["font.family"] = "sans-serif"
    draw().savefig(ROOT / "docs/figures/auc.svg", metadata={"Date": None})
