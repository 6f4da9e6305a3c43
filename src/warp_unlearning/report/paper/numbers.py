"""The numbers that the paper prints, each with its table or figure, row, column and unit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import inf
from typing import Any

import yaml

from ...errors import InputError

NOT_PRINTED = "--"
_NUMBER = re.compile(r"[+-]?\d+(?:\.(\d+))?")


@dataclass(frozen=True)
class PaperNumber:
    """A number as printed, and the numbers it may stand for.

    `low` and `high` are the ends of what rounds to it: 0.545 stands for 0.5445 to 0.5455, "<0.01" for all up to 0.01,
    "2..3" for 1.5 to 3.5. `value` is the number itself, None for a range or a bound. `spread` is what the paper prints
    after ±.
    """

    label: str
    row: str
    column: str
    unit: str
    printed: str
    value: float | None
    low: float
    high: float
    spread: float | None

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the range as printed, without what rounds to them; twice the number where it is no range."""
        if self.value is not None:
            return self.value, self.value
        first, between, last = self.printed.partition("..")
        return (float(first), float(last)) if between else (-inf, self.high)

    def __str__(self) -> str:
        words = self.printed.replace("..", " to ").replace("~", "about ").replace("<", "at most ")
        return words.replace("-", "−").replace("±", " ± ")


@dataclass(frozen=True)
class PaperTable:
    """One table, or what the text says of one figure: `rows` as measured, `improvements` in percent as printed."""

    label: str
    name: str
    about: str
    columns: tuple[str, ...]
    rows: dict[str, dict[str, PaperNumber]]
    improvements: dict[str, dict[str, PaperNumber]]

    def number(self, row: str, column: str) -> PaperNumber | None:
        """The number there, None where the paper has none."""
        return self.rows.get(row, {}).get(column)

    def improvement(self, row: str, column: str) -> PaperNumber | None:
        """The improvement printed there, None where the paper has none."""
        return self.improvements.get(row, {}).get(column)


@cache
def paper_tables() -> dict[str, PaperTable]:
    """Every table and figure with numbers, by its label."""
    text = files(__package__).joinpath("numbers.yaml").read_text(encoding="utf-8")
    return {table.label: table for table in map(_table, yaml.safe_load(text))}


def paper_table(label: str) -> PaperTable:
    """The table or figure with this label."""
    tables = paper_tables()
    if label not in tables:
        raise InputError(f"the paper has no numbers under {label!r}; there are {', '.join(tables)}")
    return tables[label]


def all_numbers() -> Iterator[PaperNumber]:
    """Every number, improvements included."""
    for table in paper_tables().values():
        for row in (*table.rows.values(), *table.improvements.values()):
            yield from row.values()


def parse_number(printed: str) -> tuple[float | None, float, float, float | None]:
    """(value, low, high, spread) of a number as printed.

    >>> parse_number("0.5"), parse_number("2..3")
    ((0.5, 0.45, 0.55, None), (None, 1.5, 3.5, None))
    """
    if ".." in printed:
        first, _, last = printed.partition("..")
        return None, _digits(first)[1], _digits(last)[2], None
    if printed.startswith("<"):
        return None, -inf, _digits(printed[1:])[0], None
    text, _, spread = printed.removeprefix("~").partition("±")
    return (*_digits(text), float(spread) if spread else None)


def _digits(text: str) -> tuple[float, float, float]:
    """The number, and the ends of what rounds to it."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise InputError(f"{text!r} is not a number as a table prints it")
    places = len(found[1] or "")
    value, half = float(text), 0.5 * 10.0**-places
    return value, round(value - half, places + 2), round(value + half, places + 2)


def _table(data: dict[str, Any]) -> PaperTable:
    label = data["label"]
    columns = [(column["name"], column["unit"]) for column in data["columns"]]
    rows, improvements = (
        {
            row: {
                name: PaperNumber(label, row, name, unit or own, printed, *parse_number(printed))
                for (name, own), printed in zip(columns, line.split(), strict=True)
                if printed != NOT_PRINTED
            }
            for row, line in data.get(part, {}).items()
        }
        for part, unit in (("rows", None), ("improvements", "%"))
    )
    return PaperTable(label, data["name"], data["about"], tuple(name for name, _ in columns), rows, improvements)
