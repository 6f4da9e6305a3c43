"""The paper's numbers are those it prints, and docs/paper.md says of them what is so."""

from __future__ import annotations

from itertools import product
from math import inf, nan

import pytest

from warp_unlearning.errors import InputError
from warp_unlearning.report.paper_numbers import PaperNumber, PaperTable, paper_table, paper_tables
from warp_unlearning.report.paper_rows import paper_share

BLACK, WHITE = "tab:bb_mm_advred", "fig:wb_privacy"
METHODS = ("NGP", "SCRUB", "PGU", "SalUn", "SF", "BT")
# What "improvement (%)" may stand for, of b without and w with the defence, and c what guessing scores.
FORMULAS = {
    "advantage": lambda b, w, c: (b - w) / (b - c),
    "privacy": lambda b, w, c: (1 - w) / (1 - b) - 1,
    "errors": lambda b, w, c: 1 - (1 - w) / (1 - b),
    "of base": lambda b, w, c: (b - w) / b,
    "of defended": lambda b, w, c: (b - w) / w,
}
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
    assert number.value == value


@pytest.mark.parametrize(("label", "numbers", "total", "improvements", "percents"), SUMS)
def test_the_tables_add_up(label: str, numbers: int, total: float, improvements: int, percents: float) -> None:
    table = paper_table(label)
    found = [number.value for row in table.rows.values() for number in row.values()]
    percent = [number.value for row in table.improvements.values() for number in row.values()]
    assert (len(found), len(percent)) == (numbers, improvements)
    assert sum(v or 0 for v in found) == pytest.approx(total, abs=1e-6)
    assert sum(v or 0 for v in percent) == pytest.approx(percents, abs=1e-6)


def test_every_number_has_an_order() -> None:
    rows = [row for t in paper_tables().values() for row in (*t.rows.values(), *t.improvements.values())]
    assert all(number.low < number.high for row in rows for number in row.values())


@pytest.mark.parametrize(
    ("printed", "value", "low", "high", "shown"),
    [
        ("0.545", 0.545, 0.5445, 0.5455, "0.545"),
        ("-5.7", -5.7, -5.75, -5.65, "−5.7"),
        ("+2.0", 2.0, 1.95, 2.05, "+2.0"),
        ("10.74±0.31", 10.74, 10.735, 10.745, "10.74 ± 0.31"),
        ("<0.6", None, -inf, 0.6, "at most 0.6"),
        ("~-32", -32.0, -32.5, -31.5, "about −32"),
        ("0.79..0.80", None, 0.785, 0.805, "0.79 to 0.80"),
    ],
)
def test_what_a_printed_number_may_stand_for(
    printed: str, value: float | None, low: float, high: float, shown: str
) -> None:
    found = PaperNumber.parse(printed)
    assert (found.value, found.low, found.high) == pytest.approx((value, low, high))
    assert str(found) == shown


def test_what_is_no_number_and_what_is_no_table_is_an_error() -> None:
    with pytest.raises(InputError, match="'0,5' is not a number"):
        PaperNumber.parse("0,5")
    with pytest.raises(InputError, match="no numbers under 'tab:none'"):
        paper_table("tab:none")


def value(table: PaperTable, row: str, column: str = "value") -> float:
    found = table.value(row, column)
    assert found is not None
    return found


def shares(formula: str, base: PaperNumber, defended: PaperNumber, chance: float) -> list[float]:
    """The improvements in percent at the ends of all numbers that round to what is printed."""
    ends = product((base.low, base.high), (defended.low, defended.high))
    return [100 * FORMULAS[formula](b, w, chance) for b, w in ends]


def follow(label: str, formula: str, part: str = "") -> dict[tuple[str, str], bool]:
    """Whether each improvement that a table prints follows a formula, of the columns that contain `part`."""
    table, found = paper_table(label), {}
    for row, columns in table.improvements.items():
        other = "filtered" if label == "tab:recon_core" else f"{row} + WARP"
        for column in (c for c in columns if part in c):
            measure = column.rpartition(": ")[2]
            chance = 0.5 if measure == "AUC" else float(measure.split()[2]) / 100 if measure.startswith("TPR") else 0.0
            base, defended, printed = table.rows[row][column], table.rows[other][column], columns[column]
            # A pole between the ends would make every number possible, and none meaningful.
            pole = formula == "advantage" and base.low <= chance <= base.high
            ends = shares(formula, base, defended, chance) if not pole else [nan]
            # Improvements of images are printed without the sign of the change.
            ends = [abs(end) for end in ends] if "recon" in label else ends
            low, high = min(ends), max(ends)
            found[row, column] = low <= printed.high and printed.low <= high
    return found


def test_table_1_has_the_share_of_the_advantage_and_for_accuracy_that_of_errors() -> None:
    privacy = {**follow(BLACK, "advantage", "AUC"), **follow(BLACK, "advantage", "TPR")}
    assert len(privacy) == 47
    assert all(privacy.values())
    assert list(follow(BLACK, "errors", "accuracy").values()) == [True] * 6
    assert not any(follow(BLACK, "of base", "accuracy").values())
    assert all(follow("tab:wb_vit", "advantage").values())


def test_the_white_box_areas_follow_no_single_formula_and_six_of_its_rates_do() -> None:
    assert not any(follow(WHITE, "advantage", "AUC").values())
    assert {row for (row, _), holds in follow(WHITE, "privacy", "AUC").items() if holds} == {"SCRUB", "BT"}
    rates = follow(WHITE, "advantage", "TPR")
    assert len(rates) == 18
    assert [column for (_, column), holds in rates.items() if holds] == ["TPR at 0.1 %"] * 6


def test_the_reconstruction_tables_divide_by_different_numbers() -> None:
    assert all(follow("tab:recon_core", "of base").values())
    base, defended = (follow("tab:recon_teleport", f"of {name}") for name in ("base", "defended"))
    divided = {column: (base[row, column], defended[row, column]) for row, column in base}
    assert {c for c, found in divided.items() if found == (False, True)} == {
        "PSNR",
        "LPIPS (Alex)",
        "MSE",
        "feature MSE",
    }
    assert {c for c, found in divided.items() if found == (True, False)} == {"SSIM", "LPIPS (VGG)"}
    table = paper_table("tab:recon_teleport")
    psnr = value(table, "filtered", "PSNR"), value(table, "filtered + WARP", "PSNR")
    assert round(100 * (psnr[0] - psnr[1]) / psnr[1], 1) == 45.5
    assert round(100 * (psnr[0] - psnr[1]) / psnr[0]) == 31


def test_one_roc_curve_falls() -> None:
    table, falling = paper_table(BLACK), []
    for row in table.rows:
        for part in ("all", "most memorised 1 %"):
            rates = [value(table, row, f"{part}: TPR at {fpr} %") for fpr in ("0.1", "1", "5")]
            if rates != sorted(rates):
                falling.append((row, part))
    assert falling == [("SF", "most memorised 1 %")]


def test_accuracy_of_sf_falls_and_is_third() -> None:
    table = paper_table(BLACK)
    rise = {m: value(table, f"{m} + WARP", "test accuracy") - value(table, m, "test accuracy") for m in METHODS}
    assert {m for m, r in rise.items() if r > 0} == {"PGU", "SalUn", "BT"}
    ranked = sorted(METHODS, key=lambda m: -value(table, m, "test accuracy"))
    assert ranked.index("SF") == 2


def test_the_largest_drops_of_the_white_box_area() -> None:
    table = paper_table(WHITE)
    drops = {m: round(value(table, m, "AUC") - value(table, f"{m} + WARP", "AUC"), 3) for m in METHODS}
    assert drops == {"PGU": 0.126, "SCRUB": 0.043, "SF": 0.041, "BT": 0.031, "NGP": 0.028, "SalUn": 0.016}


def test_white_box_rates_are_nearly_proportional_and_black_box_rates_are_not() -> None:
    white, vit, black = paper_table(WHITE), paper_table("tab:wb_vit"), paper_table(BLACK)
    steps = [value(white, row, "TPR at 1 %") / value(white, row, "TPR at 0.1 %") for row in white.rows]
    assert len(steps) == 12
    assert 8.49 < min(steps) < max(steps) < 12.51
    decades = [
        value(vit, row, high) / value(vit, row, low)
        for row in vit.rows
        for low, high in (("TPR at 0.01 %", "TPR at 0.1 %"), ("TPR at 0.1 %", "TPR at 1 %"))
    ]
    assert 9.4 < min(decades) < max(decades) < 9.95
    others = [
        value(black, row, f"{part}: TPR at 1 %") / value(black, row, f"{part}: TPR at 0.1 %")
        for row in black.rows
        for part in ("all", "most memorised 1 %")
        if value(black, row, f"{part}: TPR at 0.1 %") > 0 and (row, part) != ("SF", "most memorised 1 %")
    ]
    assert (round(min(others), 1), round(max(others), 1)) == (1.7, 6.0)


def test_a_rate_rises_with_the_defence() -> None:
    table = paper_table(BLACK)
    risen = [
        (m, column)
        for m in METHODS
        for column in list(table.rows[m])[:-1]
        if value(table, f"{m} + WARP", column) > value(table, m, column)
    ]
    assert risen == [("PGU", "all: TPR at 5 %")]


def test_teleports_become_five_times_faster() -> None:
    table = paper_table("fig:fastTime")
    base, exact, fast = (value(table, row) for row in ("BT", "BT + WARP", "BT + FastWARP"))
    assert (exact - base) / (fast - base) == pytest.approx(5)
    claim = paper_table("fig:fastTime, ratio").number("teleport time")
    assert claim is not None
    assert claim.high < 5
    share = paper_share("BT", "warp")
    assert share is not None
    assert round(share.value or 0) == 83


def test_the_memorised_slice_is_repeated() -> None:
    first, second = paper_table(BLACK), paper_table("tab:dp-langevin-tradeoff")
    for column in ("AUC", "TPR at 0.1 %"):
        one = value(first, "NGP + WARP", f"most memorised 1 %: {column}")
        assert value(second, "NGP + WARP", f"most memorised 5 %: {column}") == one


def test_the_headlines() -> None:
    table, white = paper_table(BLACK), paper_table(WHITE)
    largest = {c: max(n.value or 0 for r in table.improvements.values() if (n := r.get(c))) for c in table.rows["NGP"]}
    assert largest["all: AUC"] == 64.4
    assert largest["most memorised 1 %: AUC"] == 94.4
    assert max(row["AUC"].value or 0 for row in white.improvements.values()) == 92.9
