"""`warp compare`: models side by side, references, and the verdict's exit code."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from warp_unlearning.cli.subject import load_run

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
    assert answer.err.startswith("error: ")


MLP = ("--model", "mlp", "-o", "model.options.hidden=[16]", "-o", "training.epochs=4", "--device", "cpu")


def shuffled(points: Path, out: Path, order: np.ndarray[Any, Any]) -> Path:
    """The points with the training rows in another order, or fewer of them."""
    arrays = dict(np.load(points))
    np.savez(out, **{k: v if k.endswith("_test") else v[order] for k, v in arrays.items()})
    return out


def test_rows_are_the_same_rows_whatever_the_order_of_the_files(warp: Warp, points: Path, tmp_path: Path) -> None:
    order = np.random.default_rng(2).permutation(60)
    other = shuffled(points, tmp_path / "other.npz", order)
    assert warp("train", "--data", points, *MLP, "--out", tmp_path / "r0").code == 0
    (tmp_path / "q.txt").write_text("\n".join(map(str, range(10))))
    asked = ("--data", other, "--forget", tmp_path / "q.txt", "--method", "retrain", "--out", tmp_path / "r1")
    assert warp("unlearn", tmp_path / "r0", *asked).code in (0, 1, 3)
    said = json.loads((tmp_path / "r1" / "results.json").read_text())["before"]["forgotten"]
    found = json.loads(warp("compare", tmp_path / "r0", tmp_path / "r1", "--json").out)
    assert found["counts"]["forget"] == 10
    assert found["models"]["original"]["accuracy"]["forget"]["value"] == pytest.approx(said)
    assert found["verdict"]["null"] == "ours"
    audit = warp("audit", "pair", tmp_path / "r0", tmp_path / "r1", "--json")
    assert json.loads(audit.out)["counts"]["forgotten"] == 10


def test_a_reference_from_a_file_without_the_rows(warp: Warp, points: Path, tmp_path: Path) -> None:
    fewer = shuffled(points, tmp_path / "fewer.npz", np.arange(10, 60))
    for name, data in (("r0", points), ("reference", fewer)):
        assert warp("train", "--data", data, *MLP, "--out", tmp_path / name).code == 0
    (tmp_path / "q.txt").write_text("\n".join(map(str, range(10))))
    asked = ("--forget", tmp_path / "q.txt", "--method", "ngp", "--out", tmp_path / "r1")
    assert warp("unlearn", tmp_path / "r0", *asked).code in (0, 1, 3)
    answer = warp("compare", tmp_path / "r0", tmp_path / "r1", "--retrained", tmp_path / "reference", "--json")
    assert answer.code in (0, 1, 3), answer.err
    assert json.loads(answer.out)["verdict"]["null"] == "retrained"


def test_what_one_of_the_models_has_learned_from_is_not_unseen(warp: Warp, points: Path, tmp_path: Path) -> None:
    arrays = dict(np.load(points))
    np.savez(tmp_path / "all.npz", x=arrays["x"], y=arrays["y"])
    held = ("--data", tmp_path / "all.npz", "--holdout", "0.5", *MLP)
    for name, seed in (("r0", 0), ("b0", 5)):
        assert warp("train", *held, "--seed", seed, "--out", tmp_path / name).code == 0
    known = [{*load_run(tmp_path / name).known.tolist()} for name in ("r0", "b0")]
    (tmp_path / "q.txt").write_text("\n".join(map(str, sorted(known[0] - known[1])[:5])))
    found = json.loads(warp("compare", tmp_path / "r0", tmp_path / "b0", "--forget", tmp_path / "q.txt", "--json").out)
    assert found["counts"]["test"] == 60 - len(known[0] | known[1])


def test_models_that_read_rows_in_two_ways_are_not_compared(warp: Warp, points: Path, tmp_path: Path) -> None:
    for name, scale in (("r0", 1), ("r1", 3)):
        assert warp("train", "--data", points, *MLP, "--scale", scale, "--out", tmp_path / name).code == 0
    answer = warp("compare", tmp_path / "r0", tmp_path / "r1", "--forget-class", 1)
    assert answer.code == 2
    assert "compare models that read them alike" in answer.err


def test_a_frozen_network_is_not_forgotten_by_construction(warp: Warp, points: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from torch import nn\ndef build():\n    m = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))\n"
        "    m[0].requires_grad_(False)\n    return m\n"
    )
    own = ("--model", f"{tmp_path / 'own.py'}:build", "--data", points, "-o", "training.epochs=2")
    assert warp("train", *own, "--out", tmp_path / "r0").code == 0
    asked = ("--forget-class", 1, "--method", "retrain", "--our-recipe", "--out", tmp_path / "r1")
    assert warp("unlearn", tmp_path / "r0", *asked).code in (0, 1, 3)
    nulls = [json.loads((tmp_path / "r1" / "results.json").read_text())["verdict"]["null"]]
    nulls.append(json.loads(warp("compare", tmp_path / "r0", tmp_path / "r1", "--json").out)["verdict"]["null"])
    assert nulls == ["drawn", "drawn"]
