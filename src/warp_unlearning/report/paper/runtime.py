"""Figures 8 and 9: what WARP and FastWARP add to the time of each method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import floor, log10
from typing import Any

from matplotlib.figure import Figure

from ..fields import Field
from ..labels import brief, counted, defense_label, method_label
from ..measures import Estimate, read_estimate, written
from ..plots import Plot
from ..style import blank, look
from .agreement import Cell, beside, shown
from .extent import missing_text, rows_text
from .formulas import difference, ratio
from .markdown import bullets, table
from .names import in_order, row_name
from .numbers import PaperNumber, paper_table
from .rendered import Rendered, rendered
from .study import read_about
from .teleport_times import Runs, read_runs, teleport_table

_NOTE = (
    "The paper timed on an RTX 4090: seconds on another machine are not compared, shares are. The interval of a share "
    "is from the two separate intervals, so that it is wide. The mean over methods is of those measured here."
)
_EXACT_AND_FAST = (("warp", "fastwarp"), ("warp_guarded (0.1)", "fastwarp_guarded (0.1)"))


@dataclass(frozen=True)
class Timed:
    """The time of one method with one defence, mean over so many runs, and the seconds of every teleport of each run,
    where they are known.
    """

    method: str
    defense: str | None
    seconds: Estimate
    runs: int
    teleports: Runs = ()


def render(results: Mapping[str, Any], *, folder: str = "figures") -> Rendered:
    """Seconds and extra shares, and the paper's statements about them."""
    whole, about = read_about(results)
    timed = [_timed(row) for row in whole["rows"]]
    if not timed:
        whole["rows"].wrong("at least one time")
    found = {(row.method, row.defense): row for row in timed}
    methods = in_order(tuple(dict.fromkeys(row.method for row in timed)))
    defenses = dict.fromkeys(row.defense for row in timed)
    shown_rows = [found[arm] for arm in product(methods, defenses) if arm in found]
    rows, cells, digits = [], [], seconds_digits(row.seconds for row in timed)
    for row in shown_rows:
        line, judged = _row(row, found.get((row.method, None)), digits)
        rows.append(line)
        cells += judged
    claims, judged = _claims(found, methods)
    heads = ["arm", "seconds", "runs", "more than without the defence, %"]
    return rendered(
        "Runtime",
        about,
        _NOTE,
        table(heads, rows),
        bullets(claims),
        teleport_table([(row_name(row.method, row.defense), row.teleports) for row in shown_rows]),
        missing_text(about),
        plots={"runtime": _plot(timed, methods)},
        folder=folder,
        cells=[*cells, *judged],
        intro=rows_text(about, len(timed)),
    )


def seconds_digits(found: Iterable[Estimate]) -> int:
    """Decimals with which the shortest time has four digits that count, so that shares can be checked; at least two.

    >>> seconds_digits([Estimate(0.0312, None, None), Estimate(2.0, None, None)])
    5
    """
    known = [seconds.value for seconds in found if seconds.value]
    return max(2, 3 - floor(log10(min(known)))) if known else 2


def extra(row: Timed, base: Timed | None) -> Estimate | None:
    """The share by which it takes longer than without the defence."""
    found = None if base is None else ratio(row.seconds, base.seconds)
    return None if found is None else found.mapped(1, -1)


def mean_of(found: list[Estimate]) -> Estimate | None:
    """The mean with the mean of the ends: no narrower than any dependence between them allows."""
    if not found:
        return None
    parts = [[getattr(e, name) for e in found] for name in ("value", "low", "high")]
    value, low, high = (None if None in part else sum(part) / len(part) for part in parts)
    return Estimate(value, low, high)


def paper_share(method: str, defense: str) -> PaperNumber | None:
    """The paper's extra time in percent from the seconds it prints, and all it may stand for; None without both.

    >>> str(paper_share("BT", "fastwarp"))
    'about 17'
    """
    table_of = paper_table("fig:fastTime")
    name = f"{method} + {defense_label(defense)}"
    base, found = table_of.number(method, "value"), table_of.number(name, "value")
    if base is None or found is None or base.value is None or found.value is None:
        return None
    value, low, high = (
        100 * (top / bottom - 1)
        for top, bottom in ((found.value, base.value), (found.low, base.high), (found.high, base.low))
    )
    return PaperNumber(table_of.label, name, "extra time", "%", f"~{value:.0f}", value, low, high, None)


def _timed(field: Field) -> Timed:
    return Timed(
        field["method"].text(),
        field["defense"].maybe(Field.text),
        read_estimate(field["seconds"]),
        field["runs"].count(),
        read_runs(field),
    )


def _row(row: Timed, base: Timed | None, digits: int) -> tuple[list[Cell | str], list[Cell]]:
    name = row_name(row.method, row.defense)
    seconds = beside(row.seconds, paper_table("fig:fastTime").number(name, "value"), digits=digits, compared=False)
    if row.defense is None:
        return [name, seconds, f"{row.runs}", ""], [seconds]
    table_of = paper_table("fig:runtime")
    printed = table_of.number(method_label(row.method), "extra time") if row.defense == "warp" else None
    printed = printed or paper_share(method_label(row.method), row.defense)
    share = beside(extra(row, base), printed, digits=1, scale=100)
    return [name, seconds, f"{row.runs}", share], [seconds, share]


def _claims(found: dict[tuple[str, str | None], Timed], methods: tuple[str, ...]) -> tuple[list[str], list[Cell]]:
    texts, cells = [], []
    for defense in dict.fromkeys(defense for _, defense in found if defense is not None):
        shares = {
            m: share
            for m in methods
            if (m, defense) in found and (share := extra(found[m, defense], found.get((m, None)))) is not None
        }
        printed = paper_table("fig:runtime").number("mean", "extra time") if defense == "warp" else None
        others = [share for m, share in shares.items() if m != "ngp"]
        cell = beside(mean_of(list(shares.values())), printed, digits=1, scale=100)
        cells.append(cell)
        texts.append(
            f"{defense_label(defense)}, mean over {counted(len(shares), 'method')}, %: {cell}; without NGP, which the "
            f"paper calls an exception: {shown(mean_of(others), digits=1, scale=100)}"
        )
    for method, (exact, fast) in product(methods, _EXACT_AND_FAST):
        faster = _faster(*(found.get((method, defense)) for defense in (None, exact, fast)))
        if faster is None:
            continue
        printed = paper_table("fig:fastTime, ratio").number("teleport time", "value") if exact == "warp" else None
        cell = beside(faster, printed, digits=2)
        cells.append(cell)
        names = " over those of ".join(map(defense_label, (exact, fast)))
        texts.append(f"{method_label(method)}, teleports of {names}: {cell}")
    return texts, cells


def _faster(base: Timed | None, exact: Timed | None, fast: Timed | None) -> Estimate | None:
    """The time that WARP adds over the time that FastWARP adds; None where the latter is not above 0."""
    if base is None or exact is None or fast is None:
        return None
    added = [difference(row.seconds, base.seconds) for row in (exact, fast)]
    return None if added[0] is None or added[1] is None else ratio(added[0], added[1])


def _plot(timed: list[Timed], methods: tuple[str, ...]) -> Plot:
    digits = seconds_digits(row.seconds for row in timed)
    words = "; ".join(
        f"{row_name(row.method, row.defense)} {written(row.seconds, digits=digits, unit=' s')}" for row in timed
    )
    return Plot("Time to unlearn one model", f"Bars of seconds: {words}.", partial(_draw, timed, methods))


def _draw(timed: list[Timed], methods: tuple[str, ...]) -> Figure:
    defenses = list(dict.fromkeys(row.defense for row in timed))
    figure = blank(1.6 + 0.95 * len(methods), 3.2)
    axes = figure.subplots()
    width = 0.8 / len(defenses)
    for row in timed:
        if row.seconds.value is None:
            continue
        place = methods.index(row.method) + (defenses.index(row.defense) - (len(defenses) - 1) / 2) * width
        shown_as = look(row.defense, defenses)
        axes.bar([place], [row.seconds.value], width=0.9 * width, color=shown_as.color, alpha=0.75)
        axes.containers[-1].set_label(brief(defense_label(row.defense)))
        if row.seconds.low is not None and row.seconds.high is not None:
            axes.plot([place, place], [max(row.seconds.low, 0), row.seconds.high], color="black", lw=1)
    axes.set_xticks(range(len(methods)), [brief(method_label(m), 12) for m in methods])
    axes.set(ylabel="seconds")
    axes.grid(True, axis="y")
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    figure.legend(list(once.values()), list(once), loc="outside lower center", ncols=4)
    return figure
