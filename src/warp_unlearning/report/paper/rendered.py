"""What a study is rendered to: Markdown, and figures by the name of their file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..plots import Plot
from .agreement import Cell, tally
from .markdown import bullets, code, paragraphs
from .study import About

READING = (
    "Every number of ours has its 95 % interval; after it the paper's. It *agrees* where the interval contains a "
    "number that rounds to the paper's: a wide interval agrees with much. *Not resolved*: fewer than ten negatives "
    "would pass."
)
SEPARATE = "† from two separate intervals, so wider than a paired one."


@dataclass(frozen=True)
class Rendered:
    """Markdown that starts at a second-level heading, and figures as SVG by file name."""

    markdown: str
    figures: Mapping[str, bytes]


def svg_file(plot: Plot, name: str) -> bytes:
    """The figure as a file of its own."""
    element = plot.svg(name)
    root = '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" '
    return f'<?xml version="1.0" encoding="utf-8"?>\n{element.replace("<svg ", root, 1)}\n'.encode()


def rendered(
    title: str,
    about: About,
    *parts: str,
    plots: Mapping[str, Plot],
    folder: str,
    cells: Sequence[Cell] = (),
    intro: str = "",
) -> Rendered:
    """The section of one study; `plots` by name of their file without its ending, `folder` is where links look."""
    images = [f"![{plot.title}]({folder.rstrip('/')}/{name}.svg)" for name, plot in plots.items()]
    text = paragraphs(
        f"## {title}",
        intro,
        _provenance(about),
        *([READING] if cells else []),
        *([f"**{tally(cells)}**"] if cells else []),
        *parts,
        *images,
    )
    return Rendered(text, {f"{name}.svg": svg_file(plot, name) for name, plot in plots.items()})


def _provenance(about: About) -> str:
    lines = []
    if about.hardware:
        lines.append("Hardware: " + ", ".join(f"{name} {value}" for name, value in about.hardware) + ".")
    if about.commands:
        lines.append("Commands: " + "; ".join(code(command) for command in about.commands) + ".")
    return paragraphs(" ".join(lines), bullets(about.notes) if about.notes else "").strip()
