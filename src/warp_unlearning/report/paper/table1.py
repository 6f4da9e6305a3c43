"""Table 1: U-LiRA on six methods with and without defences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..labels import method_label
from ..measures import Estimate, Score
from ..plots import Plot
from .agreement import Cell, beside, direction, rate_beside, shown
from .changes import change_table, change_text
from .extent import audited_text, problems
from .markdown import paragraphs, table
from .names import KICK, RATES, SLICES, in_order
from .numbers import PaperNumber, PaperTable, paper_table
from .panels import Mark, Panel, rows_plot
from .rendered import SEPARATE, Rendered, rendered
from .study import Change, Study, StudyArm, read_study

_KINDS = {"all": "All forgotten examples", **{name: name.capitalize() for name in SLICES}}


def render(results: Mapping[str, Any], *, folder: str = "figures") -> Rendered:
    """Areas and rates on all samples and the most memorised, accuracy, and what defences change."""
    study, paper = read_study(results), paper_table("tab:bb_mm_advred")
    arms = ordered(study)
    cells: list[Cell] = []
    parts = []
    for kind, heading in _KINDS.items():
        text, found = _scores(study, paper, kind)
        parts.append(paragraphs(f"### {heading}", text).strip())
        cells += found
    accuracy, found = _accuracy(study, paper)
    cells += found
    defended = [item for item in arms if item.arm.defense is not None]
    changed = change_table(
        defended,
        paper,
        "all: AUC",
        lowered=study.lowered,
        gone=study.advantage_gone,
        gained=study.privacy_gained,
    )
    of_slices = [_slice_changes(study, paper, name, defended) for name in SLICES]
    missing, absent = missing_rows((item.row for item in arms), paper)
    return rendered(
        "Table 1: U-LiRA",
        study.about,
        *parts,
        paragraphs("### Accuracy", accuracy).strip(),
        paragraphs("### What defences change, all forgotten examples", changed).strip() if defended else "",
        *of_slices,
        _beyond_kick(study, defended),
        missing,
        problems(study),
        plots={"table1": _plot(study, paper)},
        folder=folder,
        cells=[*cells, *absent],
        intro=audited_text(study),
    )


def _slice_changes(study: Study, paper: PaperTable, name: str, defended: list[StudyArm]) -> str:
    """What defences change among the most memorised, where the file says so."""
    if not any(name in item.of_slices for item in defended):
        return ""
    changed = change_table(
        defended,
        paper,
        f"{name}: AUC",
        lowered=lambda item: Change(item.changes_in(name).lower_by, True),
        gone=lambda item: Change(item.changes_in(name).gone, True, item.changes_in(name).note),
        gained=lambda item: Change(item.changes_in(name).privacy, True),
    )
    return paragraphs(f"### What defences change, {name}", changed).strip()


def _beyond_kick(study: Study, defended: list[StudyArm]) -> str:
    """Does a defence do more than a random move of the same length?"""
    rows = []
    for item in defended:
        if item.arm.defense != KICK and study.beside(item, KICK) is not None:
            change = study.lower_than(item, KICK)
            rows.append([item.title, change_text(change), direction(change.estimate, falls="yes", rises="no, less")])
    if not rows:
        return ""
    heads = ["arm", "AUC lower than with a random kick by", "does it do more than the kick?"]
    return paragraphs("### Beside a random move of the same length", table(heads, rows), SEPARATE).strip()


def ordered(study: Study) -> list[StudyArm]:
    """Arms by method in the paper's order, without a defence first."""
    return [
        item
        for method in in_order(study.methods)
        for defense in study.defenses
        for item in study.arms
        if item.arm.method == method and item.arm.defense == defense
    ]


def missing_rows(there: Iterable[str], paper: PaperTable) -> tuple[str, list[Cell]]:
    """The paper's rows but those there, and a cell for every number in them."""
    there = set(there)
    missing = [row for row in paper.rows if row not in there]
    cells = [Cell("", "not measured") for row in missing for _ in paper.rows[row]]
    return (f"Rows of the paper that were not measured: {', '.join(missing)}." if missing else ""), cells


def score_of(item: StudyArm, kind: str) -> Score | None:
    """The score of all samples, or of one slice."""
    return item.arm.score if kind == "all" else item.arm.slices.get(kind)


def score_cells(item: StudyArm, kind: str, paper: PaperTable) -> list[Cell]:
    """Area and rates of an arm beside the paper's."""
    score, row = score_of(item, kind), item.row
    return [
        beside(None if score is None else score.auc, paper.number(row, f"{kind}: AUC"), chance=0.5),
        *(
            rate_beside(None if score is None else score.rate(fpr), paper.number(row, f"{kind}: {name}"))
            for fpr, name in RATES.items()
        ),
    ]


def _scores(study: Study, paper: PaperTable, kind: str) -> tuple[str, list[Cell]]:
    rows, cells = [], []
    for item in ordered(study):
        found = score_cells(item, kind, paper)
        cells += found
        rows.append([item.title, *found])
    return table(["arm", "AUC", *RATES.values()], rows), cells


def _accuracy(study: Study, paper: PaperTable) -> tuple[str, list[Cell]]:
    rows, cells = [], []
    for item in ordered(study):
        accuracy = item.arm.accuracy
        test = beside(
            None if accuracy is None else accuracy.test,
            paper.number(item.row, "test accuracy"),
        )
        cells.append(test)
        others = [shown(None if accuracy is None else part) for part in _parts(item)]
        rows.append([item.title, *others, test])
    return table(["arm", "retain", "forget", "test"], rows), cells


def _parts(item: StudyArm) -> tuple[Estimate | None, Estimate | None]:
    accuracy = item.arm.accuracy
    return (None, None) if accuracy is None else (accuracy.retain, accuracy.forget)


def _plot(study: Study, paper: PaperTable) -> Plot:
    arms = ordered(study)
    panels = []
    for kind in _KINDS:
        column = f"{kind}: AUC"
        marks = tuple(_mark(item, _area(score_of(item, kind)), paper.number(item.row, column)) for item in arms)
        panels.append(Panel(f"AUC, {kind}", marks, 0.5))
    tests = tuple(_mark(item, item.test_accuracy, paper.number(item.row, "test accuracy")) for item in arms)
    return rows_plot("U-LiRA by method and defence", [*panels, Panel("test accuracy", tests)])


def _area(score: Score | None) -> Estimate | None:
    return None if score is None else score.auc


def _mark(item: StudyArm, found: Estimate | None, number: PaperNumber | None) -> Mark:
    return Mark(method_label(item.arm.method), item.arm.defense, found, None if number is None else number.value)
