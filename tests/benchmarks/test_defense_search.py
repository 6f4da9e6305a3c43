"""The whole search at a tiny size: trainings, both rounds, and what is chosen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "defense_search.py"


@pytest.mark.long
def test_every_arm_is_searched_alike(tmp_path: Path) -> None:
    options = ["--methods", "ngp", "--draws", "3", "--finalists", "1", "--audited", "300", "--device", "cpu"]
    where = ["--store", tmp_path / "store", "--out", tmp_path / "out"]
    command = [sys.executable, SCRIPT, "--size", "small", *options, "--at-once", "1", *where]
    subprocess.run(command, check=True, capture_output=True)
    rows: list[dict[str, Any]] = json.loads((tmp_path / "out" / "search.json").read_text())["rows"]
    settings = {
        defense: [json.dumps(row["settings"]) for row in rows if row["defense"] == defense]
        for defense in ("warp", "warp_guarded")
    }
    # The defaults and three draws, the same for both.
    assert len(settings["warp"]) == 4
    assert settings["warp"] == settings["warp_guarded"]
    chosen = [row for row in rows if row["chosen"]]
    assert [row["defense"] for row in chosen] == ["warp", "warp_guarded"]
    # All forget sets for the method alone, and for the defaults and one draw of either defence.
    assert [len(row["units"]) for row in rows].count(4) == 5
    best = json.loads((tmp_path / "out" / "chosen.json").read_text())
    assert best == {f"ngp + {row['defense']}": row["settings"] or {} for row in chosen}
    before = (tmp_path / "out" / "table.md").read_text()
    # Heads and five rows of what went on, a heading, heads and all nine rows of the first round.
    assert before.count("\n") == 7 + 3 + 11
    # Nothing is done twice.
    again = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert again.startswith("26 jobs, left 0, failed 0")
    assert (tmp_path / "out" / "table.md").read_text() == before
