"""Table 5: noise of several ε beside NGP + WARP.

The table's "top 5 %" repeats, for NGP + WARP, what Table 1 calls "top 1 %": that row is compared with our 1 %, the rows
of Langevin with our 5 %, as they are labelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..labels import defense_label
from ..measures import Estimate
from ..plots import Plot
from .agreement import Cell, beside, rate_beside, shown
from .extent import audited_text, problems
from .markdown import table
from .names import SLICES
from .numbers import paper_table
from .panels import Line, lines_plot
from .rendered import Rendered, rendered
from .study import Study, StudyArm, read_study
from .table1 import missing_rows, score_of

_FPR, _RATE = 0.001, "TPR at 0.1 %"
_NOTE = (
    "ε is a level of calibrated noise and no guarantee: the network is not convex and was not trained with noise. The "
    "paper's table is labelled *most memorised 5 %*, but its row NGP + WARP repeats the *1 %* of Table 1: that row "
    "stands beside our 1 %, the others beside our 5 %."
)


def render(results: Mapping[str, Any], *, folder: str = "figures") -> Rendered:
    """A row for every ε and for the other arms."""
    study = read_study(results)
    arms = _ordered(study)
    rows = [[item.titled(_name(item)), *_cells(item)] for item in arms]
    missing, absent = missing_rows((_name(item) for item in arms), paper_table("tab:dp-langevin-tradeoff"))
    heads = ["arm", "AUC", _RATE]
    for name in SLICES:
        heads += [f"{name}: AUC", f"{name}: {_RATE}"]
    return rendered(
        "Langevin noise",
        study.about,
        _NOTE,
        table([*heads, "test accuracy"], rows),
        _claims(study),
        missing,
        problems(study),
        plots={"langevin": _plot(arms)},
        folder=folder,
        cells=[*(cell for row in rows for cell in row if isinstance(cell, Cell)), *absent],
        intro=audited_text(study),
    )


def _ordered(study: Study) -> list[StudyArm]:
    noisy = [item for item in study.arms if item.arm.method == "langevin"]
    noisy.sort(key=lambda item: (item.value_of("epsilon") or 0.0, item.arm.defense is not None))
    return [*noisy, *(item for item in study.arms if item.arm.method != "langevin")]


def _name(item: StudyArm) -> str:
    epsilon = item.value_of("epsilon")
    if item.arm.method != "langevin" or epsilon is None:
        return item.row
    defense = item.arm.defense
    return f"Langevin{'' if defense is None else f' + {defense_label(defense)}'}, ε = {epsilon:g}"


def _cells(item: StudyArm) -> list[Cell]:
    paper, row, accuracy = paper_table("tab:dp-langevin-tradeoff"), _name(item), item.arm.accuracy
    meant = SLICES[0] if row == "NGP + WARP" else SLICES[1]
    cells = []
    for kind in ("all", *SLICES):
        score = score_of(item, kind)
        printed = "all" if kind == "all" else "most memorised 5 %" if kind == meant else None
        area, rate = (None if printed is None else paper.number(row, f"{printed}: {c}") for c in ("AUC", _RATE))
        cells.append(beside(None if score is None else score.auc, area, chance=0.5))
        cells.append(rate_beside(None if score is None else score.rate(_FPR), rate))
    return [*cells, beside(None if accuracy is None else accuracy.test, paper.number(row, "test accuracy"))]


def _claims(study: Study) -> str:
    """The paper: at the accuracy of NGP + WARP, Langevin noise leaks more."""
    warp = study.find("ngp", "warp")
    if warp is None or warp.arm.score is None or warp.arm.accuracy is None or warp.arm.accuracy.test is None:
        return "NGP + WARP was not measured, so that nothing is said about which defence is better."
    as_good = [
        item
        for item in study.arms
        if item.arm.method == "langevin" and not item.idle
        if item.arm.accuracy is not None and item.arm.score is not None
        if _at_least(item.arm.accuracy.test, warp.arm.accuracy.test)
    ]
    if not as_good:
        return "No ε reaches the test accuracy of NGP + WARP within the intervals."
    best = min(as_good, key=lambda item: _value(item))
    mine, theirs = warp.arm.score.auc.strength, best.arm.score.auc.strength if best.arm.score else None
    return (
        f"Of the ε whose test accuracy is not shown to be below that of NGP + WARP, {_name(best)} leaks least: AUC "
        f"{shown(theirs)} against {shown(mine)} of NGP + WARP; {_verdict(mine, theirs)}."
    )


def _at_least(accuracy: Estimate | None, other: Estimate) -> bool:
    if accuracy is None or accuracy.high is None or other.low is None:
        return False
    return accuracy.high >= other.low


def _value(item: StudyArm) -> float:
    score = item.arm.score
    return 1.0 if score is None else score.auc.strength.value or 1.0


def _verdict(mine: Estimate, theirs: Estimate | None) -> str:
    if theirs is None or None in (mine.low, mine.high, theirs.low, theirs.high):
        return "without intervals nothing is shown"
    if (mine.high or 0) < (theirs.low or 0):
        return "NGP + WARP leaks less, and the intervals do not meet"
    return (
        "the intervals meet, so that neither is shown to leak less"
        if (theirs.high or 0) >= (mine.low or 0)
        else ("the noise leaks less, and the intervals do not meet")
    )


def _plot(arms: list[StudyArm]) -> Plot:
    noisy = [item for item in arms if item.value_of("epsilon") is not None]
    defenses = dict.fromkeys(item.arm.defense for item in noisy)
    paper = paper_table("tab:dp-langevin-tradeoff")

    def line(defense: str | None, kind: str) -> Line:
        own = [item for item in noisy if item.arm.defense == defense]
        points = tuple((item.value_of("epsilon") or 0.0, _measure(item, kind)) for item in own)
        column = "test accuracy" if kind == "test" else f"{kind}: AUC"
        known = [(item.value_of("epsilon") or 0.0, paper.number(_name(item), column)) for item in own]
        label = "ours" if defense is None else f"ours + {defense_label(defense)}"
        theirs = tuple((x, n.value) for x, n in known if n is not None and n.value is not None)
        return Line(label, defense, points, theirs)

    panels = [
        (name, [line(defense, kind) for defense in defenses])
        for name, kind in (("AUC", "all"), ("AUC, most memorised 5 %", SLICES[1]), ("test accuracy", "test"))
    ]
    return lines_plot("Langevin noise by ε", "ε", panels, log=True)


def _measure(item: StudyArm, kind: str) -> Estimate | None:
    if kind == "test":
        return None if item.arm.accuracy is None else item.arm.accuracy.test
    score = score_of(item, kind)
    return None if score is None else score.auc
