"""Studies of arms beside the paper: Tables 1 and Figures 1, 2, 3 and 10; and `render`, the section of any study."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InputError, nearest
from ..stats.intervals import Estimate
from .compare import (
    SEPARATE,
    Cell,
    Table,
    bare,
    beside,
    bullets,
    change_text,
    code,
    difference,
    direction,
    footnotes,
    improvement,
    magnitude,
    mapped,
    missing_rows,
    paragraphs,
    ratio,
    shown,
    tally,
)
from .drawing import Gallery, Plot
from .figures import Panel, arms_panel, dots_plot, risk_gallery
from .paper_numbers import RATES, SLICES, PaperTable, in_order, paper_table, row_name
from .paper_rows import adaptive, reconstruction, runtime
from .paper_study import (
    KICK,
    Section,
    Study,
    StudyArm,
    audited_text,
    problems,
    read_rows,
    read_study,
    scores,
)
from .paper_sweeps import langevin, sensitivity, tradeoff
from .schema_shadow import About, Against, Risk, Rows
from .utility_figures import radar_gallery, trade_plot
from .words import counted, defense_label, flat, method_label

_READING = (
    "Every number of ours has its 95 % interval; after it the paper's. It *agrees* where the interval contains a "
    "number that rounds to the paper's: a wide interval agrees with much. *Not resolved*: fewer than ten negatives "
    "would pass."
)


@dataclass(frozen=True)
class Rendered:
    """Markdown that starts at a second-level heading, and figures as SVG by file name."""

    markdown: str
    figures: Mapping[str, bytes]


def render(results: Mapping[str, Any], *, folder: str = "figures") -> Rendered:
    """The section of the study that the results name; its links to figures start with `folder`."""
    name = results.get("study")
    about: About
    if not isinstance(name, str) or name not in STUDIES:
        raise InputError(f"unknown study {name!r}; {nearest(str(name), STUDIES)}")
    if name in _OF_ROWS:
        about = rows = read_rows(results)
        section, intro = _OF_ROWS[name](rows), _rows_text(rows)
        end = f"Not measured:\n\n{bullets(rows.missing)}" if rows.missing else ""
    else:
        about = study = read_study(results)
        section, of_pairs = _OF_ARMS[name](study), name == "whitebox"
        intro, end = audited_text(study, of_pairs=of_pairs), problems(study, of_pairs=of_pairs)
    cells = [*section.cells, *(cell for part in section.parts if isinstance(part, Table) for cell in part.cells)]
    text = paragraphs(
        f"## {section.title}",
        intro,
        _provenance(about),
        *((_READING, f"**{tally(cells)}**") if cells else ()),
        *map(str, section.parts),
        end,
        *(f"![{plot.title}]({folder.rstrip('/')}/{name}.svg)" for name, plot in section.plots.items()),
    )
    return Rendered(f"{text}\n", {f"{name}.svg": plot.file("svg", name) for name, plot in section.plots.items()})


def _rows_text(study: Rows) -> str:
    """How many rows of a study of rows there are, where they are not all."""
    missing, there = len(study.missing), len(study.rows)
    if not missing:
        return ""
    return (
        f"**Incomplete: {there:,} of {counted(there + missing, 'row')} {'is' if there == 1 else 'are'} "
        "there.** What is said below of several rows is of those."
    )


def _provenance(about: About) -> str:
    lines = []
    if about.hardware:
        lines.append("Hardware: " + ", ".join(f"{name} {value}" for name, value in flat(about.hardware)) + ".")
    if about.commands:
        lines.append("Commands: " + "; ".join(code(command) for command in about.commands) + ".")
    return paragraphs(" ".join(lines), bullets(about.notes))


def _table1(study: Study) -> Section:
    """Table 1: areas and rates on all samples and the most memorised, accuracy, and what defences change."""
    paper, arms = paper_table("tab:bb_mm_advred"), study.ordered
    headings = {"all": "all forgotten examples", **{name: name for name in SLICES}}
    parts: list[object] = []
    for of, heading in headings.items():
        rows = [[arm.title, *scores(arm, of, paper, f"{of}: ")] for arm in arms]
        parts += [f"### {heading.capitalize()}", Table(["arm", "AUC", *RATES.values()], rows)]
    kept = [
        [
            arm.title,
            *(shown(None if arm.accuracy is None else getattr(arm.accuracy, part)) for part in ("retain", "forget")),
            beside(arm.test_accuracy, paper.number(arm.row, "test accuracy")),
        ]
        for arm in arms
    ]
    parts += ["### Accuracy", Table(["arm", "retain", "forget", "test"], kept)]
    defended = [arm for arm in arms if arm.defense is not None]
    for of, heading in headings.items():
        if defended and (of == "all" or any((arm.slice_reductions or {}).get(of) for arm in defended)):
            parts += [f"### What defences change, {heading}", *_changes(study, defended, paper, of, f"{of}: AUC")]
    missing, absent = missing_rows((arm.row for arm in arms), paper)
    panels = [_area_panel(f"AUC, {of}", arms, of, paper, f"{of}: AUC") for of in headings]
    accuracy = arms_panel(
        "test accuracy", arms, lambda arm: arm.test_accuracy, paper=lambda arm: paper.value(arm.row, "test accuracy")
    )
    plot = dots_plot("U-LiRA by method and defence", [*panels, accuracy])
    return Section("Table 1: U-LiRA", [*parts, *_beyond_kick(study, defended), missing], {"table1": plot}, absent)


def _area_panel(label: str, arms: Sequence[StudyArm], of: str, paper: PaperTable, column: str) -> Panel:
    return arms_panel(label, arms, lambda arm: arm.area(of), guess=0.5, paper=lambda arm: paper.value(arm.row, column))


def _beyond_kick(study: Study, defended: Sequence[StudyArm]) -> list[object]:
    """Does a defence do more than a random move of the same length?"""
    rows = []
    for arm in defended:
        if arm.defense != KICK and study.beside(arm, KICK) is not None:
            change = study.lower_than(arm, KICK)
            rows.append([arm.title, change_text(change), direction(change.estimate, falls="yes", rises="no, less")])
    heads = ["arm", "AUC lower than with a random kick by", "does it do more than the kick?"]
    return ["### Beside a random move of the same length", Table(heads, rows), SEPARATE] if rows else []


_PAIR_RATES = (
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


def _whitebox(study: Study) -> Section:
    """Figure 3: attackers who hold the models before and after, also those who undo a defence first."""
    paper, arms = paper_table("fig:wb_privacy"), study.ordered
    rows = []
    for arm in arms:
        pairs = 0 if arm.gradient_test is None else arm.gradient_test.pairs
        rows.append([arm.title, f"{pairs}", *scores(arm, "gradient", paper)])
    parts: list[object] = ["### The gradient-difference test as it is"]
    parts += [Table(["arm", "pairs", "AUC", *RATES.values()], rows), _PAIR_RATES]
    if defended := [arm for arm in arms if arm.defense is not None]:
        parts += ["### What defences change of it", *_changes(study, defended, paper, "gradient", "AUC")]
    for method in in_order(study.methods):
        parts += _attackers(method, [arm for arm in arms if arm.method == method])
    parts += [_STRONGEST] if any(arm.strongest is not None for arm in arms) else []
    missing, absent = missing_rows((arm.row for arm in arms), paper)
    strongest = arms_panel(
        "strongest attacker", arms, lambda arm: None if arm.strongest is None else arm.strongest.strength, guess=0.5
    )
    panels = [_area_panel("gradient difference, AUC", arms, "gradient", paper, "AUC"), strongest]
    plots = {"whitebox": dots_plot("Attackers who hold both models", panels)}
    return Section("White box: attackers who hold both models", [*parts, missing], plots, absent)


def _attackers(method: str, arms: Sequence[StudyArm]) -> list[object]:
    """A table with a row an attacker and a column a defence; AUCs below ½ leak as much as those above."""
    heads, columns, best = ["attacker"], [], ["**strongest**, max(AUC, 1 − AUC)"]
    for arm in arms:
        pairs = max((attack.pairs for attack in arm.pair_attacks), default=0)
        heads.append(arm.titled(defense_label(arm.defense)) + (f", {counted(pairs, 'pair')}" if pairs else ""))
        columns.append({attack.name: shown(attack.auc) for attack in reversed(arm.pair_attacks)})
        found = arm.strongest
        best.append("not measured" if found is None else f"{shown(found.strength)} by {found.attack}")
    without = ["nothing to undo" if arm.pair_attacks and arm.defense is None else "not measured" for arm in arms]
    names = dict.fromkeys(attack.name for arm in arms for attack in arm.pair_attacks)
    rows = [[name, *(c.get(name, text) for c, text in zip(columns, without, strict=True))] for name in names]
    return [f"### Attackers of {method_label(method)}, AUC", Table(heads, [*rows, best])]


def _radar(study: Study) -> Section:
    """Figure 2: the values of the six axes beside the paper's, and a chart a method."""
    black, white = paper_table("tab:bb_mm_advred"), paper_table("fig:wb_privacy")
    smallest, memorised = RATES[0.001], SLICES[0]
    rows = []
    for arm in study.ordered:
        outputs, weights = scores(arm, "all", black, "all: ")[:2], scores(arm, "gradient", white)[:2]
        part = scores(arm, memorised, black, f"{memorised}: ")[0]
        test = beside(arm.test_accuracy, black.number(arm.row, "test accuracy"))
        rows.append([arm.title, *outputs, part, *weights, test])
    heads = [f"black-box {name}" for name in ("AUC", smallest)] + [f"AUC, {memorised}"]
    heads += [f"white-box {name}" for name in ("AUC", smallest)] + ["test accuracy"]
    note = (
        "The paper's charts stretch every axis to the range of its methods and print no numbers; the numbers beside "
        "ours are those of its Table 1 and Figure 3. Its third axis is called accuracy on the most memorised subset, "
        "which no table has: ours is the AUC there. Our charts are on absolute axes: the rim is an attacker who only "
        "guesses. White-box numbers are means over pairs of models, each pair's TPR at the threshold of its own "
        "negatives."
    )
    return Section("Radar charts", [note, Table(["arm", *heads], rows)], _plots(radar_gallery(study)))


def _risk_vs_norm(study: Study) -> Section:
    """Figure 1: are examples with long gradients those at risk? The rank correlation of every arm, and its scatter."""
    rows = []
    for arm in study.ordered:
        count, found = (
            0 if arm.risk is None else len(arm.risk.score),
            None if arm.risk is None else arm.risk.correlation,
        )
        if found is None and arm.risk is not None and (value := _rank_correlation(arm.risk)) is not None:
            found = bare(value)
        rows.append([arm.title, f"{count:,}", shown(found), direction(found, falls="yes", rises="no, it falls")])
    heads = ["arm", "examples", "rank correlation of norm and score", "does risk rise with the norm?"]
    note = (
        "The paper prints no number for its Figure 1; it says that risk and gradient norm correlate clearly. Ours: "
        "Spearman's rank correlation of a forgotten example's gradient norm with the attacker's score. One point is "
        "forgotten by several shadows, so that an interval over the pairs shown would be too narrow: where the results "
        "have none over shadows and points, none is given."
    )
    return Section("Gradient norm and risk", [note, Table(heads, rows)], _plots(risk_gallery(study)))


def _rank_correlation(pairs: Risk) -> float | None:
    """Spearman's ρ; None where one of both does not vary."""
    if len(pairs.score) < 3 or not np.ptp(pairs.gradient_norm) or not np.ptp(pairs.score):
        return None
    # Takes a second to import.
    from scipy.stats import spearmanr

    return float(spearmanr(pairs.gradient_norm, pairs.score).statistic)


def _fastwarp(study: Study) -> Section:
    """Figure 10: does following the bases instead of decomposing them change privacy or accuracy?"""
    paper, arms = paper_table("fig:fastwarp"), study.ordered
    rows = [[arm.title, arm.swept_text, shown(arm.one_minus_auc), shown(arm.test_accuracy)] for arm in arms]
    far: list[list[Cell | str]] = []
    for fast in (arm for arm in arms if arm.defense == "fastwarp"):
        far.append([method_label(fast.method), fast.swept_text])
        for name, apart in zip(("1 − AUC", "test accuracy"), _apart(study.beside(fast, "warp"), fast), strict=True):
            number = paper.number(name) if fast.method == "ngp" else None
            far[-1].append(beside(magnitude(apart), number, scale=100, digits=2, within=True))
    note = (
        "The paper says that 1 − AUC differs by at most 0.3 to 0.6 % and accuracy by at most 0.2 to 0.3 points; that "
        "agrees where the whole interval of the difference lies within the larger of each, differs where it lies "
        "outside, and is not resolved else."
    )
    wide = "Intervals are from two separate ones, and wide, where the results have no paired ones."
    parts = [
        Table(["arm", "settings", "1 − AUC", "test accuracy"], rows),
        note,
        Table(["method", "settings", "1 − AUC apart, % of it", "accuracy apart, points"], far),
        wide if far else "FastWARP was not measured.",
    ]
    points = [(arm.defense, arm.test_accuracy, arm.one_minus_auc) for arm in arms]
    plot = trade_plot("Test accuracy and privacy, exact and followed bases", points)
    return Section("FastWARP beside WARP", parts, {"fastwarp": plot})


def _apart(exact: StudyArm | None, fast: StudyArm) -> tuple[Estimate | None, Estimate | None]:
    """1 − AUC of the fast one over that of the exact one, less 1; and its accuracy less the exact one's."""
    against = fast.against.get("warp", Against())
    before = None if exact is None else exact.one_minus_auc
    relative = ratio(fast.one_minus_auc, before)
    relative = None if relative is None else mapped(relative, 1, -1)
    if against.auc is not None and before is not None and before.value:
        # 1 − AUC is larger by as much as the AUC is lower; that the divisor is measured adds next to nothing.
        relative = mapped(against.auc, 1 / before.value)
    return relative, against.test_accuracy or difference(
        fast.test_accuracy, None if exact is None else exact.test_accuracy
    )


def _changes(study: Study, arms: Sequence[StudyArm], paper: PaperTable, of: str, column: str) -> list[object]:
    """What a defence changes, a row an arm: by both formulas of the paper, with intervals and what they show."""
    rows, changes = [], []
    for arm in arms:
        lowered, gone, gained = study.changed(arm, of)
        changes += [lowered, gone, gained]
        base, defended = (paper.number(row_name(arm.method, defense), column) for defense in (None, arm.defense))
        by_advantage = improvement("advantage", base, defended, column)
        by_privacy = improvement("privacy", base, defended, column)
        printed = paper.improvement(method_label(arm.method), column) if arm.defense == "warp" else None
        outcome = beside(gone.estimate, by_advantage, scale=100).outcome or ""
        verdict = {"differs": ", **differs**", "agrees": ", agrees"}.get(outcome, "")
        line: list[object] = [arm.title, change_text(lowered), direction(lowered.estimate)]
        line += [change_text(gone, scale=100, digits=1) + verdict, by_advantage or "", printed or ""]
        rows.append([*line, change_text(gained, scale=100, digits=1), by_privacy or ""])
    heads = ["arm", "AUC lower by", "does the defence lower the AUC?", "advantage over guessing gone, %"]
    heads += ["paper, from its AUCs", "paper, as printed", "1 − AUC larger by, %", "paper, from its AUCs"]
    return [Table(heads, rows), footnotes(changes)]


def _plots(gallery: Gallery) -> dict[str, Plot]:
    return dict(zip(gallery.names(), gallery.plots, strict=True))


_OF_ARMS: Mapping[str, Callable[[Study], Section]] = {
    "table1": _table1,
    "whitebox": _whitebox,
    "radar": _radar,
    "risk-vs-norm": _risk_vs_norm,
    "fastwarp": _fastwarp,
    "langevin": langevin,
    "tradeoff": tradeoff,
    "sensitivity": sensitivity,
}
_OF_ROWS = {"runtime": runtime, "reconstruction": reconstruction, "adaptive": adaptive}
STUDIES = (*_OF_ARMS, *_OF_ROWS)
"""The names of all studies that can be shown."""
