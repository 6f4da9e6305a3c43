"""Markdown tables and lists."""

from __future__ import annotations

from collections.abc import Sequence

from ..fields import showable


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table; what would end a cell or a line is replaced.

    >>> print(table(["a", "b"], [["1", "x|y"]]))
    | a | b |
    |---|---|
    | 1 | x\\|y |
    """
    lines = [_line(heads), "|" + "---|" * len(heads), *(_line([str(cell) for cell in row]) for row in rows)]
    return "\n".join(lines)


def bullets(items: Sequence[str]) -> str:
    """A list."""
    return "\n".join(f"- {' '.join(showable(item).split())}" for item in items)


def paragraphs(*parts: str) -> str:
    """What is not empty, with empty lines between."""
    return "\n\n".join(part for part in parts if part) + "\n"


def code(text: str) -> str:
    """Text in a fixed font on one line."""
    return f"`{' '.join(showable(text).split()).replace('`', chr(39))}`"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_flat(cell).replace("|", "\\|") for cell in cells) + " |"


def _flat(text: str) -> str:
    return " ".join(showable(text).replace("<", "&lt;").split())
