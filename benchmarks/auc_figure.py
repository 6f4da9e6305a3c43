"""Draw docs/figures/auc.svg: what U-LiRA finds of each method alone and defended, from the committed results.

Run it as `python benchmarks/auc_figure.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

from warp_unlearning.report.figures import area, arms_panel, dots_plot
from warp_unlearning.report.paper_study import StudyArm, read_study

ROOT = Path(__file__).parent.parent
STUDIES = {
    "digits, an MLP": ("small/digits", "small/digits_retrained"),
    "Fashion-MNIST (5,000 images), a small ResNet": ("small/fashion_mnist",),
}
DEFENSES = (None, "warp", "warp_guarded")


def arms(folders: tuple[str, ...]) -> list[StudyArm]:
    """The arms of studies with the defences shown."""
    studies = [read_study(json.loads((ROOT / "results" / folder / "results.json").read_text())) for folder in folders]
    return [arm for study in studies for arm in study.ordered if arm.defense in DEFENSES]


if __name__ == "__main__":
    panels = [arms_panel(f"AUC, {title}", arms(folders), area, guess=0.5) for title, folders in STUDIES.items()]
    plot = dots_plot("AUC of U-LiRA, 0.5 is guessing, with 95 % intervals", panels, width=4.2)
    (ROOT / "docs/figures/auc.svg").write_bytes(plot.file("svg", "auc"))
