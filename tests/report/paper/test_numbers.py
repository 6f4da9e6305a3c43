from __future__ import annotations

from math import inf

import pytest

from warp_unlearning.errors import InputError
from warp_unlearning.report.paper.numbers import all_numbers, paper_table, paper_tables, parse_number

# Read off the paper by eye.
SPOTS = [
    ("tab:bb_mm_advred", "NGP", "all: AUC", 0.545),
    ("tab:bb_mm_advred", "NGP + WARP", "all: TPR at 0.1 %", 0.003),
    ("tab:bb_mm_advred", "SCRUB", "most memorised 1 %: AUC", 0.710),
    ("tab:bb_mm_advred", "SCRUB + WARP", "most memorised 1 %: TPR at 5 %", 0.213),
    ("tab:bb_mm_advred", "PGU", "all: TPR at 5 %", 0.098),
    ("tab:bb_mm_advred", "PGU + WARP", "all: TPR at 5 %", 0.104),
    ("tab:bb_mm_advred", "SalUn", "most memorised 1 %: TPR at 1 %", 0.321),
    ("tab:bb_mm_advred", "SF", "most memorised 1 %: TPR at 0.1 %", 0.089),
    ("tab:bb_mm_advred", "SF + WARP", "most memorised 1 %: AUC", 0.501),
    ("tab:bb_mm_advred", "BT", "all: TPR at 0.1 %", 0.0),
    ("tab:bb_mm_advred", "BT + WARP", "test accuracy", 0.818),
    ("fig:wb_privacy", "NGP", "AUC", 0.642),
    ("fig:wb_privacy", "SCRUB + WARP", "TPR at 1 %", 0.061),
    ("fig:wb_privacy", "PGU", "AUC", 0.659),
    ("fig:wb_privacy", "PGU + WARP", "AUC", 0.533),
    ("fig:wb_privacy", "SalUn + WARP", "TPR at 5 %", 0.214),
    ("fig:wb_privacy", "BT", "TPR at 5 %", 0.809),
    ("tab:recon_teleport", "filtered + WARP", "PSNR", 7.38),
    ("tab:recon_teleport", "filtered", "feature MSE", 5.39),
    ("tab:recon_core", "GIFD", "PSNR", 8.28),
    ("tab:recon_core", "filtered", "LPIPS (Alex)", 0.345),
    ("tab:wb_vit", "NGP", "TPR at 0.01 %", 0.0019),
    ("tab:wb_vit", "NGP + WARP", "AUC", 0.755),
    ("tab:dp-langevin-tradeoff", "Langevin, ε = 8", "most memorised 5 %: AUC", 0.912),
    ("tab:dp-langevin-tradeoff", "Langevin, ε = 16", "test accuracy", 0.798),
    ("tab:dp-langevin-tradeoff", "Langevin, ε = 1", "all: AUC", 0.523),
    ("fig:fastTime", "BT + WARP", "value", 55.0),
    ("fig:runtime", "NGP", "extra time", -32.0),
    ("fig:tradeoff", "largest 1 − AUC of NGP + WARP", "value", 0.484),
]
IMPROVEMENTS = [
    ("tab:bb_mm_advred", "NGP", "all: AUC", 64.4),
    ("tab:bb_mm_advred", "PGU", "all: TPR at 5 %", -12.5),
    ("tab:bb_mm_advred", "SF", "most memorised 1 %: AUC", 94.4),
    ("tab:bb_mm_advred", "NGP", "test accuracy", -5.7),
    ("fig:wb_privacy", "PGU", "AUC", 92.9),
    ("fig:wb_privacy", "BT", "AUC", 49.2),
    ("tab:recon_teleport", "filtered", "PSNR", 45.5),
    ("tab:wb_vit", "NGP", "TPR at 1 %", 61.2),
]


# How many numbers a table has and what they add up to, and the same of its improvements, summed over its source.
SUMS = [
    ("tab:bb_mm_advred", 108, 36.272, 53, 1618.3),
    ("fig:wb_privacy", 48, 12.868, 24, 902.7),
    ("tab:recon_teleport", 12, 37.34, 6, 229.0),
    ("tab:recon_core", 12, 33.609, 6, 144.9),
    ("tab:wb_vit", 10, 2.5754, 5, 232.3),
    ("tab:dp-langevin-tradeoff", 25, 11.077, 0, 0.0),
]


@pytest.mark.parametrize(("label", "row", "column", "value"), SPOTS)
def test_a_number_is_the_one_that_the_paper_prints(label: str, row: str, column: str, value: float) -> None:
    number = paper_table(label).number(row, column)
    assert number is not None
    assert number.value == value
    assert number.low < value < number.high


@pytest.mark.parametrize(("label", "row", "column", "value"), IMPROVEMENTS)
def test_an_improvement_is_the_one_that_the_paper_prints(label: str, row: str, column: str, value: float) -> None:
    number = paper_table(label).improvement(row, column)
    assert number is not None
    assert (number.value, number.unit) == (value, "%")


@pytest.mark.parametrize(("label", "numbers", "total", "improvements", "percents"), SUMS)
def test_the_tables_add_up(label: str, numbers: int, total: float, improvements: int, percents: float) -> None:
    table = paper_table(label)
    found = [number.value for row in table.rows.values() for number in row.values()]
    percent = [number.value for row in table.improvements.values() for number in row.values()]
    assert (len(found), len(percent)) == (numbers, improvements)
    assert sum(v or 0 for v in found) == pytest.approx(total, abs=1e-6)
    assert sum(v or 0 for v in percent) == pytest.approx(percents, abs=1e-6)


def test_every_row_of_the_tables_is_there() -> None:
    rows = {label: (len(t.rows), len(t.improvements), len(t.columns)) for label, t in paper_tables().items()}
    assert rows["tab:bb_mm_advred"] == (12, 6, 9)
    assert rows["fig:wb_privacy"] == (12, 6, 4)
    assert rows["tab:recon_teleport"] == (2, 1, 6)
    assert rows["tab:recon_core"] == (2, 1, 6)
    assert rows["tab:wb_vit"] == (2, 1, 5)
    assert rows["tab:dp-langevin-tradeoff"] == (5, 0, 5)
    # Six rows of nine and six of four, of which the paper leaves one improvement out.
    assert len(paper_table("tab:bb_mm_advred").improvements["BT"]) == 8
    tables = [t for label, t in paper_tables().items() if label.startswith("tab:") or label == "fig:wb_privacy"]
    assert sum(len(row) for t in tables for row in t.rows.values()) == 108 + 48 + 12 + 12 + 10 + 25


def test_every_number_has_a_unit_a_place_and_an_order() -> None:
    found = list(all_numbers())
    assert all(number.unit and number.row and number.column and number.low < number.high for number in found)
    places = [(n.label, n.row, n.column, n.unit) for n in found]
    assert len(set(places)) == len(places)
    shares = [n.value for n in found if n.unit == "share" and n.value is not None]
    assert all(0 <= value <= 1 for value in shares)


@pytest.mark.parametrize(
    ("printed", "found"),
    [
        ("0.545", (0.545, 0.5445, 0.5455, None)),
        ("-5.7", (-5.7, -5.75, -5.65, None)),
        ("+2.0", (2.0, 1.95, 2.05, None)),
        ("10.74±0.31", (10.74, 10.735, 10.745, 0.31)),
        ("<0.6", (None, -inf, 0.6, None)),
        ("~-32", (-32.0, -32.5, -31.5, None)),
        ("0.79..0.80", (None, 0.785, 0.805, None)),
    ],
)
def test_what_a_printed_number_may_stand_for(printed: str, found: tuple[float | None, ...]) -> None:
    assert parse_number(printed) == pytest.approx(found)


def test_what_is_no_number_and_what_is_no_table_is_an_error() -> None:
    with pytest.raises(InputError, match="'0,5' is not a number"):
        parse_number("0,5")
    with pytest.raises(InputError, match="no numbers under 'tab:none'"):
        paper_table("tab:none")


def test_how_a_number_is_written() -> None:
    fast = paper_table("fig:fastTime, ratio").number("teleport time", "value")
    psnr = paper_table("tab:recon_core").number("GIFD", "PSNR")
    assert (str(fast), str(psnr)) == ("2 to 3", "8.28 ± 0.28")
    assert str(paper_table("fig:runtime").number("NGP", "extra time")) == "about −32"
