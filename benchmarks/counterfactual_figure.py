"""Draw what `counterfactual.py` found: areas and test accuracy against cost, for 1, 10 and 100 requests.

python benchmarks/counterfactual_figure.py results/counterfactual/cifar10.json docs/figures/counterfactual.svg
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

REQUESTS = (1, 10, 100)
SHAPES = {
    "bank": ("#1b6ca8", "o"),
    "short reference": ("#8a8a8a", "s"),
    "partial, from the original": ("#c0392b", "^"),
    "partial, from scratch": ("#d9a441", "v"),
}
PANELS = {
    "AUC of U-LiRA": lambda row: row["auc"],
    "AUC, most memorised 5 %": lambda row: row["auc_memorised"],
    "AUC, all statistics together": lambda row: row.get("attacks", {}).get("all together", {}).get("auc"),
    "change of test accuracy": lambda row: row["test_change"],
}


def points(row: Mapping[str, Any]) -> Iterator[tuple[float, int]]:
    """Cost of one of so many requests, in per cent of a retraining."""
    for requests in REQUESTS if row["prepare"] else (1,):
        yield 100 * (row["prepare"] / requests + row["request"]), requests


def draw(axes: Axes, rows: list[dict[str, Any]], panel: str) -> None:
    """One panel; of a bank, larger points share its price among more requests."""
    for row in rows:
        found = PANELS[panel](row)
        if found is None:
            continue
        if row["family"] == "none":
            axes.axhline(found["value"], color="black", linewidth=0.8, linestyle=":")
            continue
        color, marker = SHAPES[row["family"]]
        error = [[found["value"] - found["low"]], [found["high"] - found["value"]]]
        for cost, requests in points(row):
            size = 3 + 2 * REQUESTS.index(requests) if row["prepare"] else 5
            axes.errorbar(cost, found["value"], error, color=color, marker=marker, markersize=size, linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlim(4, 600)
    axes.set_xticks((5, 10, 20, 50, 100, 200, 500), ("5", "10", "20", "50", "100", "200", "500"))
    axes.minorticks_off()
    axes.set_title(panel, fontsize=10)
    axes.set_xlabel("cost of a request, % of a retraining", fontsize=9)
    if panel.startswith("AUC"):
        axes.axhline(0.5, color="#cccccc", linewidth=0.8, zorder=0)
        axes.set_ylim(0.45, 1.0)


def main() -> None:
    """Draw the four panels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("figure", type=Path)
    options = parser.parse_args()
    rows = json.loads(options.results.read_text())["rows"]
    figure = Figure(figsize=(11, 7), layout="constrained")
    for axes, panel in zip(figure.subplots(2, 2).flat, PANELS, strict=True):
        draw(axes, rows, panel)
    entries = [figure.axes[0].plot([], [], color=c, marker=m, linestyle="", label=n)[0] for n, (c, m) in SHAPES.items()]
    entries += figure.axes[0].plot([], [], color="black", linestyle=":", label="the original")
    figure.legend(handles=entries, loc="outside lower center", ncols=5, fontsize=9)
    options.figure.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "counterfactual", "svg.fonttype": "none"}):
        figure.savefig(options.figure, metadata={"Date": None} if options.figure.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
