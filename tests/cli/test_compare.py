"""`warp compare`: models side by side, references, and the verdict's exit code."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

Warp = Callable[..., Any]


def test_a_no_op_does_not_hold(warp: Warp, trained: Path, forget_file: Path, tmp_path: Path) -> None:
    file = tmp_path / "same.safetensors"
    shutil.copy(trained / "model.safetensors", file)
    answer = warp("compare", trained, file, "--forget", forget_file)
    assert answer.code == 1
    assert "nothing moved" in answer.out
    assert answer.out.splitlines()[-1].startswith("does not hold: outputs differ by .0000 on average")


def test_a_table_the_verdict_and_results(
    warp: Warp, trained: Path, unlearned: Path, retrained: Path, tmp_path: Path
) -> None:
    out = tmp_path / "results.json"
    answer = warp("compare", trained, unlearned, "--retrained", retrained, "--out", out)
    found = json.loads(out.read_text())
    assert answer.code == found["verdict"]["exit"]
    assert found["verdict"]["sentence"] in answer.out
    assert list(found["models"]) == ["original", "unlearned", "retrained"]
    assert max(map(len, answer.out.split("moved  ")[0].splitlines())) <= 100
    assert "total variation" in answer.out
    assert json.loads(warp("compare", trained, unlearned, "--retrained", retrained, "--json").out) == found
    again = warp("compare", trained, unlearned, "--out", out)
    assert again.code == 2
    assert "already" in again.err


def test_a_reference_must_not_know_the_rows(warp: Warp, trained: Path, unlearned: Path, forget_file: Path) -> None:
    answer = warp("compare", trained, unlearned, "--retrained", unlearned)
    assert answer.code == 2
    assert "was made by ngp, so it is no reference" in answer.err
    answer = warp("compare", trained, unlearned, "--retrained", trained)
    assert answer.code == 2
    assert "learned from 50 of the 50 rows to forget" in answer.err


def test_rows_must_be_said_and_data_be_the_same(warp: Warp, trained: Path, points: Path, tmp_path: Path) -> None:
    answer = warp("compare", trained, trained)
    assert answer.code == 2
    assert "nothing says which rows" in answer.err
    other = tmp_path / "other"
    assert warp("train", "--data", points, "--model", "mlp", "-o", "training.epochs=1", "--out", other).code == 0
    answer = warp("compare", trained, other, "--forget-class", "3")
    assert answer.code == 2
    assert "has other data than the original model" in answer.err
