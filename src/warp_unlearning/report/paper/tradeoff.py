"""Figure 7: test accuracy against privacy over settings of a method, with and without WARP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..labels import method_label
from ..measures import Estimate
from .agreement import Cell, beside, shown
from .changes import change_text, footnotes
from .extent import audited_text, problems
from .markdown import bullets, table
from .names import row_name
from .numbers import paper_table
from .panels import trade_plot
from .rendered import Rendered, rendered
from .study import Study, StudyArm, read_study

_NOTE = (
    "Every row is one setting. The largest 1 − AUC of several settings is chosen after the fact: what is largest by "
    "chance is taken, so that its interval reaches too high, the more so the more settings there are."
)


def render(results: Mapping[str, Any], *, folder: str = "figures") -> Rendered:
    """All settings, the best of each defence beside the paper's, and what WARP changes at the highest accuracy."""
    study, paper = read_study(results), paper_table("fig:tradeoff")
    arms = sorted(study.arms, key=lambda item: (item.arm.method, item.arm.defense or "", -_accuracy_value(item)))
    rows = [_row(study, item) for item in arms]
    claims, cells = [], []
    for method in study.methods:
        for defense in study.defenses:
            own = [
                i for i in arms if (i.arm.method, i.arm.defense) == (method, defense) and i.one_minus_auc is not None
            ]
            if not own:
                continue
            best = max(own, key=lambda item: _of(item.one_minus_auc))
            number = paper.number(f"largest 1 − AUC of {row_name(method, defense)}", "value")
            cell = beside(best.one_minus_auc, number)
            cells.append(cell)
            claims.append(f"largest 1 − AUC of {row_name(method, defense)} ({best.settings}): {cell}")
        text, cell = _highest(study, method)
        claims.append(text)
        cells.append(cell)
    heads = ["arm", "settings", "test accuracy", "1 − AUC", "advantage over guessing gone, %"]
    points = [(i.arm.defense, i.test_accuracy, i.one_minus_auc) for i in arms]
    return rendered(
        "Privacy against accuracy",
        study.about,
        _NOTE,
        table(heads, rows),
        footnotes([study.advantage_gone(item) for item in arms if item.arm.defense is not None]),
        bullets(claims),
        problems(study),
        plots={"tradeoff": trade_plot("Test accuracy and privacy by setting", points)},
        folder=folder,
        cells=cells,
        intro=audited_text(study),
    )


def _highest(study: Study, method: str) -> tuple[str, Cell]:
    """The share of the advantage that is gone where accuracy is highest."""
    own = [i for i in study.arms if i.arm.method == method and i.arm.defense == "warp" and i.test_accuracy is not None]
    label = method_label(method)
    if not own:
        return f"{label} + WARP at its highest accuracy: not measured", Cell("", None)
    best = max(own, key=_accuracy_value)
    change = study.advantage_gone(best)
    number = paper_table("fig:tradeoff").number("advantage gone at the highest accuracy", "value")
    cell = beside(change.estimate, number if method == "ngp" else None)
    told = change.note or "not measured" if change.estimate is None else str(cell)
    return f"{label} + WARP at its highest accuracy ({best.settings}), advantage gone: {told}", cell


def _row(study: Study, item: StudyArm) -> list[str]:
    gone = "" if item.arm.defense is None else change_text(study.advantage_gone(item), scale=100, digits=1)
    return [
        item.title,
        item.settings,
        shown(item.test_accuracy),
        shown(item.one_minus_auc),
        gone,
    ]


def _accuracy_value(item: StudyArm) -> float:
    return _of(item.test_accuracy)


def _of(estimate: Estimate | None) -> float:
    return 0.0 if estimate is None or estimate.value is None else estimate.value
