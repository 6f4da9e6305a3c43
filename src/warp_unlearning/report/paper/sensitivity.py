"""Figure 12: how far WARP depends on the energy it protects and on the retain batch it looks at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..measures import Estimate
from ..plots import Plot
from .agreement import Cell, shown
from .bounds import bound_cell, spread_of
from .extent import audited_text, problems
from .markdown import paragraphs, table
from .names import row_name
from .numbers import paper_table
from .panels import Line, lines_plot
from .rendered import Rendered, rendered
from .study import Study, StudyArm, read_study, swept_values

_SWEPT = {"energy": ("energy kept", "energy 0.95 to 0.999"), "batch_size": ("retain batch", "batch 256 to 4096")}
_NOTE = (
    "The interval of a range is taken from the separate intervals of its settings, so that it reaches far. A bound of "
    "the paper agrees where the whole interval lies within it, differs where it lies outside, and is not resolved "
    "else. The paper's accuracies are those of its recipe."
)


def render(results: Mapping[str, Any], *, folder: str = "figures") -> Rendered:
    """A table and a figure for each of the two sweeps, and the ranges beside the paper's."""
    study = read_study(results)
    parts, plots, cells = [], {}, []
    for name, (label, words) in _SWEPT.items():
        values = swept_values(study.arms, name)
        if not values:
            parts.append(f"The {label} was not varied.")
            continue
        arms = sorted((i for i in study.arms if i.value_of(name) is not None), key=lambda i: i.value_of(name) or 0)
        found = _ranges(arms, words)
        cells += [cell for row in found for cell in row if isinstance(cell, Cell)]
        rows = [[i.title, f"{i.value_of(name):g}", *_values(i)] for i in arms]
        parts.append(
            paragraphs(
                f"### {label.capitalize()}",
                table(["arm", label, "1 − AUC", "test accuracy"], rows),
                table(["over all settings", "ours and the paper's"], found),
            ).strip()
        )
        plots[f"sensitivity-{name.replace('_', '-')}"] = _plot(study, name, label)
    overall = spread_of([i.test_accuracy for i in study.arms if i.swept])
    number = paper_table("fig:teleport-hp-sensitivity").number("range of test accuracy, all settings", "value")
    cells.append(bound_cell(overall, number))
    return rendered(
        "Sensitivity",
        study.about,
        _NOTE,
        *parts,
        f"Range of the test accuracy over all settings: {cells[-1]}.",
        problems(study),
        plots=plots,
        folder=folder,
        cells=cells,
        intro=audited_text(study),
    )


def _ranges(arms: list[StudyArm], words: str) -> list[list[Cell | str]]:
    paper = paper_table("fig:teleport-hp-sensitivity")
    tests = [e for e in (i.test_accuracy for i in arms) if e is not None and e.value is not None]
    band = _band(tests)
    return [
        [
            "range of 1 − AUC",
            bound_cell(spread_of([i.one_minus_auc for i in arms]), paper.number(f"range of 1 − AUC, {words}", "value")),
        ],
        ["test accuracy, smallest to largest", bound_cell(band, paper.number(f"test accuracy, {words}", "value"))],
    ]


def _band(tests: list[Estimate]) -> Estimate | None:
    """The mean over settings, with an interval that holds the intervals of all."""
    if not tests:
        return None
    values = [e.value for e in tests if e.value is not None]
    low, high = [e.low for e in tests if e.low is not None], [e.high for e in tests if e.high is not None]
    mean = sum(values) / len(values)
    if len(low) < len(tests) or len(high) < len(tests):
        return Estimate(mean, None, None)
    return Estimate(mean, min(low), max(high))


def _values(item: StudyArm) -> list[str]:
    return [shown(item.one_minus_auc), shown(item.test_accuracy)]


def _plot(study: Study, name: str, label: str) -> Plot:
    kinds = dict.fromkeys((i.arm.method, i.arm.defense) for i in study.arms if i.value_of(name) is not None)

    def lines(measure: Callable[[StudyArm], Estimate | None]) -> list[Line]:
        return [
            Line(
                row_name(*kind),
                kind[1],
                tuple(
                    sorted(
                        ((i.value_of(name) or 0.0, measure(i)) for i in study.arms if _of(i, kind, name)),
                        key=lambda point: point[0],
                    )
                ),
            )
            for kind in kinds
        ]

    panels = [
        ("1 − AUC", lines(lambda item: item.one_minus_auc)),
        ("test accuracy", lines(lambda item: item.test_accuracy)),
    ]
    return lines_plot(f"Privacy and accuracy by {label}", label, panels, log=name == "batch_size")


def _of(item: StudyArm, kind: tuple[str, str | None], name: str) -> bool:
    return (item.arm.method, item.arm.defense) == kind and item.value_of(name) is not None
