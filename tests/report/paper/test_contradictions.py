"""What the list of contradictions says of numbers is so."""

from __future__ import annotations

from pathlib import Path

import pytest

from warp_unlearning.report.paper.contradictions import contradictions, contradictions_markdown, document
from warp_unlearning.report.paper.numbers import PaperTable, paper_table
from warp_unlearning.report.paper.runtime import paper_share

ROOT = Path(__file__).parents[3]
BLACK, WHITE = "tab:bb_mm_advred", "fig:wb_privacy"
METHODS = ("NGP", "SCRUB", "PGU", "SalUn", "SF", "BT")


def value(table: PaperTable, row: str, column: str) -> float:
    found = table.number(row, column)
    assert found is not None
    assert found.value is not None
    return found.value


def test_the_document_is_made_of_the_list() -> None:
    assert (ROOT / "docs" / "paper.md").read_text() == document()


def test_every_entry_takes_a_side_under_a_name_of_its_own() -> None:
    found = contradictions()
    assert len({entry.name for entry in found}) == len(found) >= 30
    assert all(entry.where and entry.says and entry.side for entry in found)
    assert contradictions_markdown(level=3).startswith("### Numbers\n")


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
        for column in table.columns[:-1]
        if value(table, f"{m} + WARP", column) > value(table, m, column)
    ]
    assert risen == [("PGU", "all: TPR at 5 %")]


def test_teleports_become_five_times_faster() -> None:
    table = paper_table("fig:fastTime")
    base, exact, fast = (value(table, row, "value") for row in ("BT", "BT + WARP", "BT + FastWARP"))
    assert (exact - base) / (fast - base) == pytest.approx(5)
    claim = paper_table("fig:fastTime, ratio").number("teleport time", "value")
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
    largest = {c: max(n.value or 0 for r in table.improvements.values() if (n := r.get(c))) for c in table.columns}
    assert largest["all: AUC"] == 64.4
    assert largest["most memorised 1 %: AUC"] == 94.4
    assert max(row["AUC"].value or 0 for row in white.improvements.values()) == 92.9


def test_quality_falls_by_45_percent_of_the_smaller_number() -> None:
    table = paper_table("tab:recon_teleport")
    base, defended = value(table, "filtered", "PSNR"), value(table, "filtered + WARP", "PSNR")
    assert round(100 * (base - defended) / defended, 1) == 45.5
    assert round(100 * (base - defended) / base) == 31
