"""Figure 2: privacy and utility on six axes, a radar chart a method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..radar_plots import radar_gallery
from .agreement import Cell, beside, rate_beside
from .extent import audited_text, problems
from .markdown import table
from .names import RATES, SLICES
from .numbers import paper_table
from .rendered import Rendered, rendered
from .study import StudyArm, read_study
from .table1 import ordered

_MEMORISED = SLICES[0]
_NOTE = (
    "The paper's charts stretch every axis to the range of its methods and print no numbers; the numbers beside ours "
    "are those of its Table 1 and Figure 3. Its third axis is called accuracy on the most memorised subset, which no "
    "table has: ours is the AUC there. Our charts are on absolute axes: the rim is an attacker who only guesses. "
    "White-box numbers are means over pairs of models, each pair's TPR at the threshold of its own negatives."
)


def render(results: Mapping[str, Any], *, folder: str = "figures") -> Rendered:
    """The values of the six axes beside the paper's, and a chart a method."""
    study = read_study(results)
    rows = [[item.title, *_cells(item)] for item in ordered(study)]
    cells = [cell for row in rows for cell in row if isinstance(cell, Cell)]
    gallery = radar_gallery(study.shadow)
    smallest = "TPR at 0.1 %"
    heads = [
        "arm",
        "black-box AUC",
        f"black-box {smallest}",
        f"AUC, {_MEMORISED}",
        "white-box AUC",
        f"white-box {smallest}",
        "test accuracy",
    ]
    return rendered(
        "Radar charts",
        study.about,
        _NOTE,
        table(heads, rows),
        problems(study),
        plots=dict(zip(gallery.names(), gallery.plots, strict=True)),
        folder=folder,
        cells=cells,
        intro=audited_text(study),
    )


def _cells(item: StudyArm) -> list[Cell]:
    arm, row = item.arm, item.row
    black, white = paper_table("tab:bb_mm_advred"), paper_table("fig:wb_privacy")
    part = arm.slices.get(_MEMORISED)
    fpr, name = next(iter(RATES.items()))
    return [
        beside(None if arm.score is None else arm.score.auc, black.number(row, "all: AUC"), chance=0.5),
        rate_beside(None if arm.score is None else arm.score.rate(fpr), black.number(row, f"all: {name}")),
        beside(None if part is None else part.auc, black.number(row, f"{_MEMORISED}: AUC"), chance=0.5),
        beside(None if arm.gradient_test is None else arm.gradient_test.auc, white.number(row, "AUC"), chance=0.5),
        rate_beside(None if arm.gradient_test is None else arm.gradient_test.rate(fpr), white.number(row, name)),
        beside(None if arm.accuracy is None else arm.accuracy.test, black.number(row, "test accuracy")),
    ]
