from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warp_unlearning.errors import DataError
from warp_unlearning.stats.intervals import Estimate
from warp_unlearning.workflows import demo as module
from warp_unlearning.workflows import demo_audit
from warp_unlearning.workflows.demo import AGAIN, DemoResult, DemoRow
from warp_unlearning.workflows.demo_audit import DemoAudit
from warp_unlearning.workflows.demo_defenses import DefendedRow

Warp = Callable[..., Any]

SCORES = {
    "forget": Estimate(0.111, 0.1, 0.2),
    "retain": Estimate(0.922, 0.9, 0.95),
    "test": Estimate(0.833, 0.8, 0.9),
}
RESULT = DemoResult(
    3,
    {"forget": 129, "retain": 1131, "test": 357},
    {
        "original": DemoRow(SCORES, Estimate(0.944, 0.9, 0.99), None),
        "retrained": DemoRow(SCORES, None, 7.5),
        AGAIN: DemoRow(SCORES, Estimate(0.155, 0.1, 0.2), 7.5),
        "ngp": DemoRow(SCORES, Estimate(0.266, 0.2, 0.3), 1.5),
    },
    {
        "ngp": {
            "none": DefendedRow(9041.4, None, 0.123, {"forget": 0.011, "retain": 0.922, "test": 0.833}, 1.5, 1.0),
            "warp": DefendedRow(43.21, 0.00051, 0.456, {"forget": 0.012, "retain": 0.923, "test": 0.834}, 3.9, 2.6),
            "conjugate": DefendedRow(None, -2e-9, 0.789, {"forget": 0.013, "retain": 0.924, "test": 0.835}, 2, 1.33),
        }
    },
    0.519,
)


AUDIT = {
    "audited": {"shadows": 16, "forget_sets": 4, "forget_set_size": 70},
    "failures": [],
    "arms": [
        {"name": "ngp + warp", "all": None, "problem": "too few models", "accuracy": {"test": None}},
    ],
}


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, int, bool]]:
    """Where the demo put its runs, its seed, and whether the folder was there; its work is not done."""
    found: list[tuple[Path, int, bool]] = []

    def run(folder: Path, *, seed: int, say: Callable[[str], None]) -> DemoResult:
        found.append((folder, seed, folder.exists()))
        say("working ...")
        return RESULT

    def audit(folder: Path, report: Path, *, seed: int, say: Callable[[str], None]) -> DemoAudit:
        say("auditing ...")
        return DemoAudit(AUDIT, report)

    monkeypatch.setattr(module, "run_demo", run)
    monkeypatch.setattr(demo_audit, "audit_demo", audit)
    return found


def test_the_table_shows_every_model(warp: Warp, folders: list[tuple[Path, int, bool]]) -> None:
    answer = warp("demo")
    assert answer.code == 0
    assert answer.err == "working ...\nauditing ...\n"
    assert "U-LiRA: 16 shadows, 4 forget sets of 70 each" in answer.out
    assert "too few models" in answer.out
    assert answer.out.splitlines()[-1] == "the report is warp-demo.html"
    alone = warp("demo", "--no-audit")
    assert (alone.err, "U-LiRA" in alone.out) == ("working ...\n", False)
    for part in ("Forgetting the digit 3", "forget (n=129)", "retain (n=1131)", "(n=357)", *RESULT.rows):
        assert part in answer.out
    for part in ("0.111 [0.100, 0.200]", "0.944 [0.900, 0.990]", "0.155 [0.100, 0.200]", "0.266 [0.200, 0.300]"):
        assert part in answer.out
    assert "no proof of forgetting" in answer.out
    assert "…" not in answer.out


def test_defences_have_a_row_each_and_times_stand_by_themselves(
    warp: Warp, folders: list[tuple[Path, int, bool]]
) -> None:
    rows = [line.split() for line in warp("demo").out.splitlines()]
    assert ["ngp", "9,041", "-", "0.123", "0.011", "0.922", "0.833"] in rows
    assert ["ngp", "+", "warp", "43.2", "0.0005", "0.456", "0.012", "0.923", "0.834"] in rows
    assert ["ngp", "+", "conjugate", "-", "0.0000", "0.789", "0.013", "0.924", "0.835"] in rows
    assert ["method", "warp", "conjugate"] in rows
    assert ["ngp", "2.60", "1.33"] in rows
    text = warp("demo").out
    assert "(original: 0.519)" in text
    assert "Experiment only" in text
    assert "may undo a move" in text


def test_runs_are_kept_only_where_asked(warp: Warp, folders: list[tuple[Path, int, bool]], tmp_path: Path) -> None:
    warp("demo")
    answer = warp("demo", "--out", tmp_path / "runs", "--seed", "4")
    (temporary, seed, there), kept = folders
    assert (seed, there) == (0, True)
    assert not temporary.exists()
    assert kept[:2] == (tmp_path / "runs", 4)
    assert f"the runs are in {tmp_path / 'runs'}" in answer.err


def test_json_alone_is_on_the_output(warp: Warp, folders: list[tuple[Path, int, bool]], tmp_path: Path) -> None:
    data = json.loads(warp("demo", "--json", "--out", tmp_path / "runs").out)
    assert data["schema_version"] == 1
    assert data["experiment_only"] is True
    assert data["defended"]["ngp"]["warp"]["time_ratio"] == 2.6
    assert data["rows"]["retrained"]["gap"] is None
    assert data["rows"]["ngp"]["gap"] == {"value": 0.266, "low": 0.2, "high": 0.3}


def test_the_temporary_folder_goes_also_after_an_error(warp: Warp, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Path] = []

    def fail(folder: Path, **_: object) -> None:
        found.append(folder)
        raise DataError("no digits; get some")

    monkeypatch.setattr(module, "run_demo", fail)
    answer = warp("demo")
    assert (answer.code, answer.err) == (2, "error: no digits; get some\n")
    assert not found[0].exists()
