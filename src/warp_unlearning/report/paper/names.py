"""Names of methods and defences as the paper writes them, and of columns as its tables have them."""

from __future__ import annotations

from ..labels import defense_label, method_label
from .numbers import PaperNumber, PaperTable

METHODS = ("ngp", "scrub", "pgu", "salun", "srf_on", "bad_teacher")
RATES = {0.001: "TPR at 0.1 %", 0.01: "TPR at 1 %", 0.05: "TPR at 5 %"}
SLICES = ("most memorised 1 %", "most memorised 5 %")
# A null-space move of the length that WARP's would have, at random: its control.
KICK = "kick"


def row_name(method: str, defense: str | None) -> str:
    """A row as our tables and the paper's name it.

    >>> row_name("ngp", None), row_name("srf_on", "warp")
    ('NGP', 'SF + WARP')
    """
    label = method_label(method)
    return label if defense is None else f"{label} + {defense_label(defense)}"


def paper_cell(table: PaperTable, method: str, defense: str | None, column: str) -> PaperNumber | None:
    """The paper's number for an arm."""
    return table.number(row_name(method, defense), column)


def in_order(methods: tuple[str, ...]) -> tuple[str, ...]:
    """The paper's methods in its order, then any others."""
    return (*(m for m in METHODS if m in methods), *(m for m in methods if m not in METHODS))
