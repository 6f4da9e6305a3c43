"""The numbers that the paper prints, each in its table or figure, row and column; and the paper's names of things."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import inf
from typing import Any

import yaml

from ..errors import InputError
from .words import defense_label, method_label

METHODS = ("ngp", "scrub", "pgu", "salun", "srf_on", "bad_teacher")
RATES = {0.001: "TPR at 0.1 %", 0.01: "TPR at 1 %", 0.05: "TPR at 5 %"}
SLICES = ("most memorised 1 %", "most memorised 5 %")
# The data and the network of the paper's tables, as audits name them.
PAPER = ("cifar10", "resnet18")
_NUMBER = re.compile(r"[+-]?\d+(?:\.(\d+))?")


@dataclass(frozen=True)
class PaperNumber:
    """A number as printed, and the ends of what it may stand for.

    0.545 stands for 0.5445 to 0.5455, "<0.01" for all up to 0.01, "2..3" for 1.5 to 3.5. `value` is None for a range or
    a bound.
    """

    printed: str
    value: float | None
    low: float
    high: float

    @classmethod
    def parse(cls, printed: str) -> PaperNumber:
        """Read a number as a table prints it.

        >>> PaperNumber.parse("2..3").low
        1.5
        """
        if ".." in printed:
            first, _, last = printed.partition("..")
            return cls(printed, None, _digits(first)[1], _digits(last)[2])
        if printed.startswith("<"):
            return cls(printed, None, -inf, _digits(printed[1:])[0])
        return cls(printed, *_digits(printed.removeprefix("~").partition("±")[0]))

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of a range as printed; twice the number where it is none."""
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

    rows: Mapping[str, Mapping[str, PaperNumber]]
    improvements: Mapping[str, Mapping[str, PaperNumber]]

    def number(self, row: str, column: str = "value") -> PaperNumber | None:
        """The number there, None where the paper has none."""
        return self.rows.get(row, {}).get(column)

    def value(self, row: str, column: str) -> float | None:
        """The number as a float, None where the paper has none, or a range."""
        found = self.number(row, column)
        return None if found is None else found.value

    def improvement(self, row: str, column: str) -> PaperNumber | None:
        """The improvement printed there, None where the paper has none."""
        return self.improvements.get(row, {}).get(column)


@cache
def paper_tables() -> dict[str, PaperTable]:
    """Every table and figure with numbers, by its label."""
    text = files(__package__).joinpath("paper_numbers.yaml").read_text(encoding="utf-8")
    return {data["label"]: _table(data) for data in yaml.safe_load(text)}


def paper_table(label: str) -> PaperTable:
    """The table or figure with this label."""
    tables = paper_tables()
    if label not in tables:
        raise InputError(f"the paper has no numbers under {label!r}; there are {', '.join(tables)}")
    return tables[label]


def row_name(method: str, defense: str | None) -> str:
    """A row as our tables and the paper's name it.

    >>> row_name("ngp", None), row_name("srf_on", "warp")
    ('NGP', 'SF + WARP')
    """
    label = method_label(method)
    return label if defense is None else f"{label} + {defense_label(defense)}"


def in_order(methods: Iterable[str]) -> tuple[str, ...]:
    """The paper's methods in its order, then any others."""
    found = dict.fromkeys(methods)
    return (*(m for m in METHODS if m in found), *(m for m in found if m not in METHODS))


def _digits(text: str) -> tuple[float, float, float]:
    """The number, and the ends of what rounds to it."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise InputError(f"{text!r} is not a number as a table prints it")
    places = len(found[1] or "")
    value, half = float(text), 0.5 * 10.0**-places
    return value, round(value - half, places + 2), round(value + half, places + 2)


def _table(data: Mapping[str, Any]) -> PaperTable:
    names = [column["name"] for column in data["columns"]]
    return PaperTable(
        *(
            {
                row: {n: PaperNumber.parse(p) for n, p in zip(names, line.split(), strict=True) if p != "--"}
                for row, line in data.get(part, {}).items()
            }
            for part in ("rows", "improvements")
        )
    )
