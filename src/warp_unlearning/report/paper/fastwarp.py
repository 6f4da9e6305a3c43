"""Figure 10: does following the bases instead of decomposing them change privacy or accuracy?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..labels import method_label
from ..measures import Estimate
from .agreement import Cell, shown
from .bounds import bound_cell, magnitude
from .extent import audited_text, problems
from .formulas import difference, ratio
from .markdown import table
from .numbers import paper_table
from .panels import trade_plot
from .rendered import Rendered, rendered
from .study import StudyArm, read_study
from .table1 import ordered

_NOTE = (
    "The paper says that 1 − AUC differs by at most 0.3 to 0.6 % and accuracy by at most 0.2 to 0.3 points; that "
    "agrees where the whole interval of the difference lies within the larger of each, differs where it lies outside, "
    "and is not resolved else."
)


def render(results: Mapping[str, Any], *, folder: str = "figures") -> Rendered:
    """Every arm, and the distance of FastWARP from WARP with the paper's bounds."""
    study, paper = read_study(results), paper_table("fig:fastwarp")
    arms = ordered(study)
    rows = [[i.title, i.settings, shown(i.one_minus_auc), shown(i.test_accuracy)] for i in arms]
    far, cells = [], []
    for fast in (item for item in arms if item.arm.defense == "fastwarp"):
        privacy, accuracy = _apart(study.beside(fast, "warp"), fast)
        is_paper = fast.arm.method == "ngp"
        found = [
            bound_cell(magnitude(privacy), paper.number("1 − AUC", "value") if is_paper else None, scale=100, digits=2),
            bound_cell(
                magnitude(accuracy), paper.number("test accuracy", "value") if is_paper else None, scale=100, digits=2
            ),
        ]
        cells += found
        far.append([method_label(fast.arm.method), fast.settings, *found])
    points = [(i.arm.defense, i.test_accuracy, i.one_minus_auc) for i in arms]
    return rendered(
        "FastWARP beside WARP",
        study.about,
        table(["arm", "settings", "1 − AUC", "test accuracy"], rows),
        _NOTE,
        table(["method", "settings", "1 − AUC apart, % of it", "accuracy apart, points"], far) if far else "",
        "Intervals are from two separate ones, and wide, where the results have no paired ones."
        if far
        else "FastWARP was not measured.",
        problems(study),
        plots={"fastwarp": trade_plot("Test accuracy and privacy, exact and followed bases", points)},
        folder=folder,
        cells=[cell for cell in cells if isinstance(cell, Cell)],
        intro=audited_text(study),
    )


def _apart(exact: StudyArm | None, fast: StudyArm) -> tuple[Estimate | None, Estimate | None]:
    """1 − AUC of the fast one over that of the exact one, less 1; and its accuracy less the exact one's."""
    before, after = (None if i is None else i.one_minus_auc for i in (exact, fast))
    tests = [None if i is None else i.test_accuracy for i in (fast, exact)]
    paired = fast.against.get("warp")
    relative = None if before is None or after is None else ratio(after, before)
    accuracy = None if tests[0] is None or tests[1] is None else difference(tests[0], tests[1])
    lower = None if relative is None else relative.mapped(1, -1)
    if paired is not None and paired.auc is not None and before is not None and before.value:
        # 1 − AUC is larger by as much as the AUC is lower; that the divisor is measured adds next to nothing.
        lower = paired.auc.mapped(1 / before.value)
    return lower, accuracy if paired is None or paired.test_accuracy is None else paired.test_accuracy
