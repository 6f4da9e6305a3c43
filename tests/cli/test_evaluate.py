from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from warp_unlearning.models.weights import read_weights

Warp = Callable[..., Any]


def refused(answer: Any, *parts: str) -> None:
    assert (answer.code, answer.out) == (2, "")
    (line,) = answer.err.splitlines()
    assert line.startswith("error: ")
    for part in parts:
        assert part in line


def estimates(data: Any) -> Iterator[dict[str, float]]:
    """Every value with an interval in nested data."""
    if isinstance(data, dict):
        if set(data) == {"value", "low", "high"}:
            yield data
        else:
            for value in data.values():
                yield from estimates(value)


@pytest.fixture(scope="module")
def with_reference(warp: Warp, trained: Path, unlearned: Path, retrained: Path) -> dict[str, Any]:
    answer = warp("evaluate", trained, unlearned, "--retrained", retrained, "--json")
    assert (answer.code, answer.err) == (0, "")
    data: dict[str, Any] = json.loads(answer.out)
    return data


def test_json_has_a_version_models_gaps_and_counts(with_reference: dict[str, Any]) -> None:
    assert with_reference["schema_version"] == 2
    assert with_reference["reference"] == "retrained model"
    assert set(with_reference["models"]) == {"original", "unlearned", "retrained"}
    assert set(with_reference["gaps"]) == {"original", "unlearned"}
    assert with_reference["counts"] == {"forget": 50, "retain": 1210, "test": 397}


def test_every_interval_contains_its_value(with_reference: dict[str, Any]) -> None:
    found = list(estimates({part: with_reference[part] for part in ("models", "gaps")}))
    # Three models with three accuracies and a loss each, and the gaps of two.
    assert len(found) == 14
    for estimate in found:
        assert estimate["low"] < estimate["high"]
        assert estimate["low"] <= estimate["value"] <= estimate["high"]


def test_the_numbers_are_those_the_unlearning_reported(
    with_reference: dict[str, Any], unlearned: Path, retrained: Path
) -> None:
    for run, name in ((unlearned, "unlearned"), (retrained, "retrained")):
        reported = json.loads((run / "summary.json").read_text())["accuracy"]["unlearned"]
        assert {w: e["value"] for w, e in with_reference["models"][name]["accuracy"].items()} == reported


def test_the_text_shows_every_number(
    warp: Warp, trained: Path, unlearned: Path, retrained: Path, with_reference: dict[str, Any]
) -> None:
    answer = warp("evaluate", trained, unlearned, "--retrained", retrained)
    assert (answer.code, answer.err) == (0, "")
    for title in ("Accuracy, with 95 % intervals", "Loss on the forget set", "Gap to the retrained model"):
        assert title in answer.out
    for column in ("forget (n=50)", "retain (n=1210)", "test (n=397)", "5% quantile", "95% quantile"):
        assert column in answer.out
    for estimate in estimates({part: with_reference[part] for part in ("models", "gaps")}):
        assert "{value:.3f} [{low:.3f}, {high:.3f}]".format(**estimate) in answer.out
    for gap in with_reference["gaps"].values():
        assert f"{gap['forget_loss']:.3f}" in answer.out
        assert all(f"{difference:+.4f}" in answer.out for difference in gap["accuracy"].values())
    # A cell that does not fit would be cut.
    assert "…" not in answer.out
    assert "no reference" not in answer.out


def test_without_a_retrained_model_it_says_so(warp: Warp, trained: Path, unlearned: Path) -> None:
    text = warp("evaluate", trained, unlearned)
    assert text.code == 0
    assert "no reference: give --retrained to see how far" in text.out
    assert "Gap to the retrained" not in text.out
    data = json.loads(warp("evaluate", trained, unlearned, "--json").out)
    assert data["reference"] == "none: no retrained model was given"
    assert data["gaps"] == {}
    assert set(data["models"]) == {"original", "unlearned"}


def test_nothing_is_written(warp: Warp, trained: Path, unlearned: Path) -> None:
    before = {p: p.stat().st_mtime_ns for run in (trained, unlearned) for p in run.rglob("*")}
    assert warp("evaluate", trained, unlearned).code == 0
    assert {p: p.stat().st_mtime_ns for run in (trained, unlearned) for p in run.rglob("*")} == before


def test_weight_files_with_a_split(
    warp: Warp, trained: Path, unlearned: Path, retrained: Path, tmp_path: Path, with_reference: dict[str, Any]
) -> None:
    torch.save(read_weights(unlearned / "model.safetensors").state, tmp_path / "u.pt")
    files = (trained / "model.safetensors", tmp_path / "u.pt", "--retrained", retrained / "model.safetensors")
    settings = ("-o", "model.options.width=4", "-o", "device=cpu", "--json")
    answer = warp("evaluate", *files, "--split", unlearned / "split", *settings)
    assert answer.code == 0
    assert json.loads(answer.out) == with_reference
    refused(warp("evaluate", *files, *settings), "there is no split", "u.pt/split", "--split FOLDER")


def test_one_forgotten_example_makes_valid_json(warp: Warp, trained: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "i.npy", np.load(trained / "train.npy")[:1])
    quick = ("-o", "method.options.epochs=1")
    assert warp("unlearn", trained, "--out", tmp_path / "u", "--forget", tmp_path / "i.npy", *quick).code == 0
    answer = warp("evaluate", trained, tmp_path / "u", "--json")

    def constant(name: str) -> None:
        pytest.fail(f"{name} is not JSON")

    data = json.loads(answer.out, parse_constant=constant)
    assert data["models"]["original"]["forget_loss_mean"]["low"] is None
    assert "[-inf, inf]" in warp("evaluate", trained, tmp_path / "u").out


def test_models_that_cannot_be_compared(
    warp: Warp, trained: Path, unlearned: Path, points: Path, tmp_path: Path
) -> None:
    refused(warp("evaluate", trained, trained), f"there is no split {trained / 'split'}", "--split FOLDER")
    refused(warp("evaluate", tmp_path / "none", unlearned), "nothing at", "none", "`warp train`")
    refused(warp("evaluate", trained, tmp_path / "none"), "there is no split", "none/split")
    answer = warp("evaluate", trained, unlearned, "--retrained", trained)
    refused(answer, f"the retrained model {trained} learned from 50 of the 50", "--method retrain")
    settings = ("--data", "npz", "--data-path", points, "-o", "model.name=mlp", "--epochs", "1")
    assert warp("train", "--out", tmp_path / "other", *settings).code == 0
    answer = warp("evaluate", tmp_path / "other", unlearned)
    refused(answer, "the unlearned model has other data (digits", "than the original (npz", "one data set")


def test_a_damaged_result_is_refused(warp: Warp, trained: Path, unlearned: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(unlearned, copy)
    np.save(copy / "split" / "forget.npy", np.array([1, 2, 3]))
    refused(warp("evaluate", trained, copy), "split/forget.npy is missing or not what the manifest says")
    shutil.copytree(unlearned / "split", tmp_path / "split")
    (tmp_path / "split" / "split.json").write_text("{}")
    answer = warp("evaluate", trained, unlearned, "--split", tmp_path / "split")
    refused(answer, "split.json has schema_version None", "make the split again")
