"""Figure 3: attackers who hold the models before and after, with the gradient-difference test and those who undo a
defence first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..labels import counted, defense_label, method_label
from ..plots import Plot
from .agreement import Cell, beside, rate_beside, shown
from .changes import change_table
from .extent import audited_text, problems
from .markdown import paragraphs, table
from .names import RATES, in_order
from .numbers import PaperTable, paper_table
from .panels import Mark, Panel, rows_plot
from .rendered import Rendered, rendered
from .study import Study, StudyArm, read_study
from .table1 import missing_rows, ordered

_RATES = (
    "Means over pairs of an original and an unlearned model, with Student's interval over pairs, or what the errors "
    "within pairs amount to where that reaches further; of a single pair its own numbers. A TPR is the mean of each "
    "pair's TPR at the threshold that lets that share of the pair's own never-seen examples pass: an attacker who "
    "calibrates on each model. It is resolved where it is in every pair; the negatives are those of the pair with the "
    "fewest. Rates take the score as it is, forgotten higher: where the AUC is below ½, an attacker who turns the "
    "score around does better than they say."
)
_STRONGEST = (
    "The strongest attacker of an arm is picked afterwards; its interval holds for all attackers of the arm at once, "
    "so that it is wider than those above it."
)


def render(results: Mapping[str, Any], *, folder: str = "figures") -> Rendered:
    """The naive test beside the paper's, what defences change of it, and every attacker by method."""
    study, paper = read_study(results), paper_table("fig:wb_privacy")
    arms = ordered(study)
    naive, cells = _naive(study, paper)
    defended = [item for item in arms if item.arm.defense is not None]
    changed = change_table(
        defended,
        paper,
        "AUC",
        lowered=study.gradient_lowered,
        gone=study.gradient_gone,
        gained=study.gradient_privacy,
    )
    missing, absent = missing_rows((item.row for item in arms), paper)
    return rendered(
        "White box: attackers who hold both models",
        study.about,
        paragraphs("### The gradient-difference test as it is", naive, _RATES).strip(),
        paragraphs("### What defences change of it", changed).strip() if defended else "",
        *_attackers(study, arms),
        missing,
        problems(study, of_pairs=True),
        plots={"whitebox": _plot(study, paper)},
        folder=folder,
        cells=[*cells, *absent],
        intro=audited_text(study, of_pairs=True),
    )


def _naive(study: Study, paper: PaperTable) -> tuple[str, list[Cell]]:
    rows, cells = [], []
    for item in ordered(study):
        test, row = item.arm.gradient_test, item.row
        found = [
            beside(None if test is None else test.auc, paper.number(row, "AUC"), chance=0.5),
            *(
                rate_beside(None if test is None else test.rate(fpr), paper.number(row, name))
                for fpr, name in RATES.items()
            ),
        ]
        cells += found
        rows.append([item.title, "0" if test is None else f"{test.pairs}", *found])
    return table(["arm", "pairs", "AUC", *RATES.values()], rows), cells


def _attackers(study: Study, arms: list[StudyArm]) -> list[str]:
    """A table a method, with a row an attacker and a column a defence; AUCs below ½ leak as much as those above."""
    parts = []
    for method in in_order(study.methods):
        own = [item for item in arms if item.arm.method == method]
        names = list(dict.fromkeys(attack.name for item in own for attack in item.attacks))
        rows: list[list[Cell | str]] = [[name, *(_auc(item, name) for item in own)] for name in names]
        rows.append(["**strongest**, max(AUC, 1 − AUC)", *(_strongest(item) for item in own)])
        heads = ["attacker", *(_head(item) for item in own)]
        parts.append(paragraphs(f"### Attackers of {method_label(method)}, AUC", table(heads, rows)).strip())
    return [*parts, _STRONGEST] if any(item.arm.strongest is not None for item in arms) else parts


def _head(item: StudyArm) -> str:
    """The defence, and how many pairs its numbers are means over."""
    pairs = max((attack.pairs for attack in item.attacks), default=0)
    return item.titled(defense_label(item.arm.defense)) + (f", {counted(pairs, 'pair')}" if pairs else "")


def _auc(item: StudyArm, name: str) -> str:
    found = next((attack.auc for attack in item.attacks if attack.name == name), None)
    if found is None and item.attacks and item.arm.defense is None:
        return "nothing to undo"
    return shown(found)


def _strongest(item: StudyArm) -> str:
    found = item.arm.strongest
    return "not measured" if found is None else f"{shown(found.strength)} by {found.attack}"


def _plot(study: Study, paper: PaperTable) -> Plot:
    tests, strengths = [], []
    for item in ordered(study):
        label, defense = method_label(item.arm.method), item.arm.defense
        number = paper.number(item.row, "AUC")
        test, best = item.arm.gradient_test, item.arm.strongest
        value = None if number is None else number.value
        tests.append(Mark(label, defense, None if test is None else test.auc, value))
        strengths.append(Mark(label, defense, None if best is None else best.strength))
    panels = [Panel("gradient difference, AUC", tuple(tests), 0.5), Panel("strongest attacker", tuple(strengths), 0.5)]
    return rows_plot("Attackers who hold both models", panels)
