"""Figures of studies: rows of points with intervals, lines over a sweep, and accuracy against privacy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ..labels import brief, defense_label
from ..measures import Estimate, written
from ..plots import Plot
from ..style import FAINT, INK, blank, look

# Lines that all belong to one defence borrow the looks of others, so as to be told apart.
_CYCLE = (None, "warp", "fastwarp", "warp_guarded", "cob", "conjugate")


@dataclass(frozen=True)
class Mark:
    """A point with its interval, in the colour of its defence, and the paper's number where it has one."""

    row: str
    defense: str | None
    estimate: Estimate | None
    paper: float | None = None


@dataclass(frozen=True)
class Panel:
    """Marks on one axis; `guess` is what guessing scores, where that means something."""

    label: str
    marks: tuple[Mark, ...]
    guess: float | None = None


@dataclass(frozen=True)
class Line:
    """Points over what was swept; `defense` gives the colour."""

    label: str
    defense: str | None
    points: tuple[tuple[float, Estimate | None], ...]
    paper: tuple[tuple[float, float], ...] = ()


def rows_plot(title: str, panels: Sequence[Panel]) -> Plot:
    """Panels side by side with one row a method and one mark a defence."""
    used = [p for p in panels if any(m.estimate is not None and m.estimate.value is not None for m in p.marks)]
    words = "; ".join(
        f"{panel.label}: " + ", ".join(f"{m.row} {defense_label(m.defense)} {written(m.estimate)}" for m in panel.marks)
        for panel in used
    )
    return Plot(title, f"{title}. {words}.", partial(_draw_rows, used))


def lines_plot(title: str, across: str, panels: Sequence[tuple[str, Sequence[Line]]], *, log: bool = False) -> Plot:
    """Panels side by side, each with its own axis upwards and lines over one sweep."""
    words = "; ".join(
        f"{label}: " + ", ".join(f"{line.label} at {x:g} {written(e)}" for line in lines for x, e in line.points)
        for label, lines in panels
    )
    return Plot(title, f"{title}. {words}.", partial(_draw_lines, across, panels, log))


def trade_plot(title: str, points: Sequence[tuple[str | None, Estimate | None, Estimate | None]]) -> Plot:
    """Test accuracy to the right, 1 − AUC upwards, a point an arm: (defence, accuracy, 1 − AUC)."""
    words = "; ".join(f"{defense_label(d)}: accuracy {written(a)}, 1 − AUC {written(p)}" for d, a, p in points)
    return Plot(title, f"{title}. {words}.", partial(_draw_trade, points))


def _draw_rows(panels: Sequence[Panel]) -> Figure:
    names = list(dict.fromkeys(mark.row for panel in panels for mark in panel.marks))
    defenses = list(dict.fromkeys(mark.defense for panel in panels for mark in panel.marks))
    figure = blank(2.5 * max(len(panels), 1) + 0.8, 1.2 + 0.42 * len(names))
    for place, (panel, axes) in enumerate(zip(panels, _side_by_side(figure, len(panels)), strict=True)):
        for mark in panel.marks:
            offset = (defenses.index(mark.defense) - (len(defenses) - 1) / 2) * 0.7 / max(len(defenses), 1)
            _mark(axes, mark, names.index(mark.row) + offset, defenses, labelled=place == 0)
        if panel.guess is not None:
            axes.axvline(panel.guess, color=FAINT, lw=0.8, ls=":")
        axes.set_yticks(range(len(names)), [brief(n, 16) for n in names] if place == 0 else [""] * len(names))
        axes.set(xlabel=panel.label, ylim=(len(names) - 0.5, -0.5))
        axes.grid(True, axis="x")
    _legend(figure)
    return figure


def _mark(axes: Axes, mark: Mark, height: float, defenses: list[str | None], *, labelled: bool) -> None:
    shown = look(mark.defense, defenses)
    found = mark.estimate
    if found is not None and found.value is not None:
        label = brief(defense_label(mark.defense)) if labelled else None
        axes.plot([found.value], [height], color=shown.color, marker=shown.marker, ms=4, ls="none", label=label)
        if found.low is not None and found.high is not None:
            axes.plot([found.low, found.high], [height, height], color=shown.color, lw=1.2)
    if mark.paper is not None:
        label = "paper" if labelled else None
        axes.plot([mark.paper], [height], marker="d", ms=6, mfc="none", mec=shown.color, ls="none", label=label)


def _draw_lines(across: str, panels: Sequence[tuple[str, Sequence[Line]]], log: bool) -> Figure:
    figure = blank(3.4 * max(len(panels), 1), 3.2)
    for (label, lines), axes in zip(panels, _side_by_side(figure, len(panels)), strict=True):
        for number, line in enumerate(lines):
            _line(axes, line, number, lines)
        if log:
            axes.set_xscale("log")
            axes.minorticks_off()
        ticks = sorted({x for line in lines for x, _ in line.points})
        axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
        axes.set(xlabel=across, ylabel=label)
        axes.grid(True)
    _legend(figure)
    return figure


def _line(axes: Axes, line: Line, number: int, lines: Sequence[Line]) -> None:
    plain = len({other.defense for other in lines}) == 1 and len(lines) > 1
    shown = look(_CYCLE[number % len(_CYCLE)] if plain else line.defense, [other.defense for other in lines])
    known = [(x, e) for x, e in line.points if e is not None and e.value is not None]
    values = [e.value for _, e in known if e.value is not None]
    axes.plot([x for x, _ in known], values, color=shown.color, ls=shown.line, marker=shown.marker, ms=4)
    axes.lines[-1].set_label(brief(line.label))
    for x, e in known:
        if e.low is not None and e.high is not None:
            axes.plot([x, x], [e.low, e.high], color=shown.color, lw=1)
    if line.paper:
        axes.plot(
            [x for x, _ in line.paper],
            [y for _, y in line.paper],
            marker="d",
            ms=6,
            mfc="none",
            mec=shown.color,
            ls="none",
            label="paper",
        )


def _draw_trade(points: Sequence[tuple[str | None, Estimate | None, Estimate | None]]) -> Figure:
    figure = blank(4.6, 3.4)
    axes = figure.subplots()
    defenses = list(dict.fromkeys(defense for defense, _, _ in points))
    for defense, accuracy, privacy in points:
        if accuracy is None or privacy is None or accuracy.value is None or privacy.value is None:
            continue
        shown = look(defense, defenses)
        axes.plot(
            [accuracy.value],
            [privacy.value],
            color=shown.color,
            marker=shown.marker,
            ms=5,
            ls="none",
            label=brief(defense_label(defense)),
        )
        if accuracy.low is not None and accuracy.high is not None:
            axes.plot([accuracy.low, accuracy.high], [privacy.value] * 2, color=shown.color, lw=0.9)
        if privacy.low is not None and privacy.high is not None:
            axes.plot([accuracy.value] * 2, [privacy.low, privacy.high], color=shown.color, lw=0.9)
    axes.axhline(0.5, color=FAINT, lw=0.8, ls=":")
    axes.set(xlabel="test accuracy", ylabel="1 − AUC")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.grid(True)
    _legend(figure)
    return figure


def _side_by_side(figure: Figure, count: int) -> list[Axes]:
    return list(figure.subplots(1, count, squeeze=False)[0]) if count else []


def _legend(figure: Figure) -> None:
    """Each label once, below the panels."""
    found: dict[str, Artist] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        for label, handle in zip(labels, handles, strict=True):
            found.setdefault(str(label), handle)
    if found:
        figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=4, labelcolor=INK)
