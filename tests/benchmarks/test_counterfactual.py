"""The whole path of the experiment on digits: trainings, banks, moves, scores and the table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "counterfactual.py"


@pytest.mark.long
def test_a_bank_hides_what_was_forgotten(tmp_path: Path) -> None:
    subprocess.run([sys.executable, SCRIPT, "--data", "digits", "--out", tmp_path], check=True, capture_output=True)
    found = json.loads((tmp_path / "results.json").read_text())
    rows: dict[str, Any] = {row["label"]: row for row in found["rows"]}
    assert len(rows) == len(list(tmp_path.glob("*.npz")))
    original, moved = rows["original"], rows["bank K=5, quantile, move 8%"]
    assert original["auc"]["low"] > 0.8
    assert moved["auc"]["high"] < 0.65
    assert moved["request"] == 0.08
    assert moved["prepare"] == 4
    # What is trained from scratch without an example knows nothing of it.
    scratch = [row["auc"] for label, row in rows.items() if "from scratch" in label]
    assert len(scratch) == 4
    assert all(0.4 < area["value"] < 0.6 for area in scratch)
    for row in rows.values():
        assert all(row[name]["low"] <= row[name]["value"] <= row[name]["high"] for name in ("auc", "test", "tpr_1"))
    assert (tmp_path / "table.md").read_text().count("\n") == len(rows) + 2
    # Two models show more than one.
    attacks = moved["attacks"]
    assert attacks["margin"]["auc"] == moved["auc"]
    assert attacks["two models"]["auc"]["low"] > attacks["all together"]["auc"]["high"]


@pytest.mark.long
def test_processes_that_share_the_work_write_one_table(tmp_path: Path) -> None:
    stages = ["--stages", "bank-5", "crops-5", "retrain-1", "warm-10-2", "--calibrations", "alone"]
    chosen = ["--chosen", Path(__file__).parents[2] / "results" / "counterfactual" / "digits.json"]
    command = [sys.executable, SCRIPT, "--data", "digits", "--out", tmp_path]
    for shadow in range(8):
        subprocess.run([*command, *stages, *chosen, "--only", str(shadow)], check=True, capture_output=True)
    # A row that not all processes wrote is left out.
    (tmp_path / "0" / "006.npz").unlink()
    subprocess.run([*command, "--table-only"], check=True, capture_output=True)
    rows: dict[str, Any] = {row["label"]: row for row in json.loads((tmp_path / "results.json").read_text())["rows"]}
    assert list(rows) == [
        "original",
        "bank K=5, alone, move 3%",
        "bank K=5, alone, move 8%",
        "bank K=5 with crops, alone, move 3%",
        "bank K=5 with crops, alone, move 8%",
        "full retraining, 1 of 4 sets",
    ]
    assert rows["original"]["auc"]["low"] > 0.8
    assert rows["bank K=5, alone, move 8%"]["auc"]["high"] < rows["original"]["auc"]["low"]
    assert rows["full retraining, 1 of 4 sets"]["request"] == 1
    assert (tmp_path / "attackers.md").read_text().count("\n") == 2 + 2 * len(rows)
