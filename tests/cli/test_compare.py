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


MLP = ("--model", "mlp", "-o", "model.options.hidden=[16]", "-o", "training.epochs=4", "--device", "cpu")


def request(folder: Path, rows: object) -> Path:
    file = folder / "q.txt"
    file.write_text("\n".join(map(str, rows)))  # type: ignore[call-overload]
    return file


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
    out, command = tmp_path / "results.json", ("compare", trained, unlearned, "--retrained", retrained)
    answer = warp(*command, "--out", out)
    found = json.loads(out.read_text())
    assert answer.code == found["verdict"]["exit"]
    assert found["verdict"]["sentence"] in answer.out
    assert list(found["models"]) == ["original", "unlearned", "retrained"]
    assert max(map(len, answer.out.split("moved  ")[0].splitlines())) <= 100
    assert "total variation" in answer.out
    assert warp(*command, "--json").out == out.read_text()
    warp(*command, "--out", out).refused("already")


def test_what_cannot_be_compared_is_refused(
    warp: Warp, trained: Path, unlearned: Path, points: Path, tmp_path: Path
) -> None:
    references = ("compare", trained, unlearned, "--retrained")
    warp(*references, unlearned).refused("was made by ngp, so it is no reference")
    warp(*references, trained).refused("learned from 50 of the 50 rows to forget")
    warp("compare", trained, trained).refused("nothing says which rows")
    for name, scale in (("r0", 1), ("r1", 3)):
        warp("train", "--data", points, *MLP, "--scale", scale, "--out", tmp_path / name).ok()
    warp("compare", trained, tmp_path / "r0", "--forget-class", 3).refused()
    alike = "compare models that read them alike"
    warp("compare", tmp_path / "r0", tmp_path / "r1", "--forget-class", 1).refused(alike)


def shuffled(points: Path, out: Path, order: np.ndarray[Any, Any]) -> Path:
    """The points with the training rows in another order, or fewer of them."""
    arrays = dict(np.load(points))
    np.savez(out, **{k: v if k.endswith("_test") else v[order] for k, v in arrays.items()})
    return out


def test_rows_are_the_same_rows_whatever_the_order_of_the_files(warp: Warp, points: Path, tmp_path: Path) -> None:
    r0, r1 = tmp_path / "r0", tmp_path / "r1"
    other = shuffled(points, tmp_path / "other.npz", np.random.default_rng(2).permutation(60))
    warp("train", "--data", points, *MLP, "--out", r0).ok()
    rows = request(tmp_path, range(10))
    warp("unlearn", r0, "--data", other, "--forget", rows, "--method", "retrain", "--out", r1).judged()
    said = json.loads((r1 / "results.json").read_text())["before"]["forgotten"]
    found = warp("compare", r0, r1, "--json").json()
    assert found["counts"]["forget"] == 10
    assert found["models"]["original"]["accuracy"]["forget"]["value"] == pytest.approx(said)
    assert found["verdict"]["null"] == "ours"
    assert warp("audit", "pair", r0, r1, "--json").json()["counts"]["forgotten"] == 10


def test_a_reference_from_a_file_without_the_rows(warp: Warp, points: Path, tmp_path: Path) -> None:
    fewer = shuffled(points, tmp_path / "fewer.npz", np.arange(10, 60))
    for name, data in (("r0", points), ("reference", fewer)):
        warp("train", "--data", data, *MLP, "--out", tmp_path / name).ok()
    asked = ("--forget", request(tmp_path, range(10)), "--method", "ngp", "--out", tmp_path / "r1")
    warp("unlearn", tmp_path / "r0", *asked).judged()
    answer = warp("compare", tmp_path / "r0", tmp_path / "r1", "--retrained", tmp_path / "reference", "--json")
    assert answer.judged().json()["verdict"]["null"] == "retrained"


def test_what_one_of_the_models_has_learned_from_is_not_unseen(warp: Warp, points: Path, tmp_path: Path) -> None:
    arrays = dict(np.load(points))
    np.savez(tmp_path / "all.npz", x=arrays["x"], y=arrays["y"])
    for name, seed in (("r0", 0), ("b0", 5)):
        held = ("--data", tmp_path / "all.npz", "--holdout", "0.5", *MLP, "--seed", seed)
        warp("train", *held, "--out", tmp_path / name).ok()
    known = [{*load_run(tmp_path / name).known.tolist()} for name in ("r0", "b0")]
    rows = request(tmp_path, sorted(known[0] - known[1])[:5])
    found = warp("compare", tmp_path / "r0", tmp_path / "b0", "--forget", rows, "--json").json()
    assert found["counts"]["test"] == 60 - len(known[0] | known[1])


def test_a_frozen_network_is_not_forgotten_by_construction(warp: Warp, points: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from torch import nn\ndef build():\n    m = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))\n"
        "    m[0].requires_grad_(False)\n    return m\n"
    )
    own = ("--model", f"{tmp_path / 'own.py'}:build", "--data", points, "-o", "training.epochs=2")
    warp("train", *own, "--out", tmp_path / "r0").ok()
    asked = ("--forget-class", 1, "--method", "retrain", "--our-recipe", "--out", tmp_path / "r1")
    warp("unlearn", tmp_path / "r0", *asked).judged()
    nulls = [json.loads((tmp_path / "r1" / "results.json").read_text())["verdict"]["null"]]
    nulls.append(warp("compare", tmp_path / "r0", tmp_path / "r1", "--json").json()["verdict"]["null"])
    assert nulls == ["drawn", "drawn"]
