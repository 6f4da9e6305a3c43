"""What a defence changes, as a table: by both formulas of the paper, with intervals and what they show."""

from __future__ import annotations

from collections.abc import Callable

from ..labels import method_label
from .agreement import beside, direction, shown
from .formulas import improvement
from .markdown import paragraphs, table
from .names import paper_cell, row_name
from .numbers import PaperNumber, PaperTable
from .rendered import SEPARATE
from .study import Change, StudyArm

HEADS = (
    "arm",
    "AUC lower by",
    "does the defence lower the AUC?",
    "advantage over guessing gone, %",
    "paper, from its AUCs",
    "paper, as printed",
    "1 − AUC larger by, %",
    "paper, from its AUCs",
)
Measure = Callable[[StudyArm], Change]


def change_table(
    arms: list[StudyArm],
    paper: PaperTable,
    column: str,
    *,
    lowered: Measure,
    gone: Measure,
    gained: Measure,
) -> str:
    """A row for every arm with a defence, with footnotes."""
    found = [(item, lowered(item), gone(item), gained(item)) for item in arms]
    rows = [_row(item, paper, column, *changes) for item, *changes in found]
    return paragraphs(table(HEADS, rows), footnotes([change for _, *changes in found for change in changes])).strip()


def footnotes(changes: list[Change]) -> str:
    """What † and ‡ of a table stand for, where they occur."""
    notes = dict.fromkeys(c.note for c in changes if c.estimate is None and c.note)
    separate = any(not c.paired and c.estimate is not None for c in changes)
    return paragraphs(SEPARATE if separate else "", f"‡ {'; '.join(notes)}." if notes else "").strip()


def change_text(change: Change, *, scale: float = 1.0, digits: int = 3) -> str:
    """A change with its interval; † where it rests on two separate intervals, ‡ where a note says why there is none."""
    if change.estimate is None:
        return "not stated ‡" if change.note else "not measured"
    return shown(change.estimate, scale=scale, digits=digits) + ("" if change.paired else " †")


def _row(item: StudyArm, paper: PaperTable, column: str, lowered: Change, gone: Change, gained: Change) -> list[str]:
    method, row = item.arm.method, item.row
    base, defended = paper_cell(paper, method, None, column), paper.number(row, column)
    by_advantage, by_privacy = (_recomputed(name, base, defended) for name in ("advantage", "privacy"))
    printed = paper.improvement(method_label(method), column) if row == row_name(method, "warp") else None
    judged = beside(gone.estimate, by_advantage, scale=100, digits=1)
    text = change_text(gone, scale=100, digits=1)
    if judged.outcome == "differs":
        text += ", **differs**"
    elif judged.outcome == "agrees":
        text += ", agrees"
    return [
        item.title,
        change_text(lowered),
        direction(lowered.estimate),
        text,
        "" if by_advantage is None else str(by_advantage),
        "" if printed is None else str(printed),
        change_text(gained, scale=100, digits=1),
        "" if by_privacy is None else str(by_privacy),
    ]


def _recomputed(formula: str, base: PaperNumber | None, defended: PaperNumber | None) -> PaperNumber | None:
    """The paper's improvement from its own numbers, to a tenth of a percent."""
    if base is None or defended is None:
        return None
    found = improvement(formula, base, defended)
    if found is None:
        return None
    printed = f"{found:.1f}"
    value = float(printed)
    return PaperNumber(
        base.label, defended.row, base.column, "%", printed, value, round(value - 0.05, 3), round(value + 0.05, 3), None
    )
