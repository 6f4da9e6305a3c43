"""Figure 1: are examples with long gradients those at risk?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..audit_shapes import Curve
from ..measures import Estimate
from ..risk_plots import risk_gallery
from .agreement import direction, shown
from .extent import audited_text, problems
from .markdown import paragraphs, table
from .rendered import Rendered, rendered
from .study import StudyArm, read_study
from .table1 import ordered

_NOTE = (
    "The paper prints no number for its Figure 1; it says that risk and gradient norm correlate clearly. Ours: "
    "Spearman's rank correlation of a forgotten example's gradient norm with the attacker's score. One point is "
    "forgotten by several shadows, so that an interval over the pairs shown would be too narrow: where the results "
    "have none over shadows and points, none is given."
)


def render(results: Mapping[str, Any], *, folder: str = "figures") -> Rendered:
    """The rank correlation of every arm, and its scatter."""
    study = read_study(results)
    gallery = risk_gallery(study.shadow)
    rows = [_row(item) for item in ordered(study)]
    heads = ["arm", "examples", "rank correlation of norm and score", "does risk rise with the norm?"]
    return rendered(
        "Gradient norm and risk",
        study.about,
        paragraphs(_NOTE, table(heads, rows)).strip(),
        problems(study),
        plots=dict(zip(gallery.names(), gallery.plots, strict=True)),
        folder=folder,
        intro=audited_text(study),
    )


def rank_correlation(pairs: Curve) -> float | None:
    """Spearman's ρ; None where one of both does not vary."""
    if len(pairs.x) < 3 or not np.ptp(pairs.x) or not np.ptp(pairs.y):
        return None
    # Takes a second to import.
    from scipy.stats import spearmanr

    return float(spearmanr(pairs.x, pairs.y).statistic)


def _row(item: StudyArm) -> list[str]:
    count = 0 if item.arm.risk is None else len(item.arm.risk.x)
    found = item.correlation
    if found is None and item.arm.risk is not None:
        found = Estimate(rank_correlation(item.arm.risk), None, None)
    return [item.title, f"{count:,}", shown(found), direction(found, falls="yes", rises="no, it falls")]
