"""`warp train`: a run that can be stopped, and one that diverges."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from warp_unlearning.cli.subject import load_run
from warp_unlearning.cli.train import CHECKPOINT, train_run
from warp_unlearning.config import resolve
from warp_unlearning.data.table import TEST, VALIDATION
from warp_unlearning.models.weights import model_digest, read_weights

Warp = Callable[..., Any]


def digest(run: Path) -> str:
    return model_digest(read_weights(run / "model.safetensors").state)


def test_a_run_holds_the_model_its_rows_and_what_was_printed(
    warp: Warp, tmp_path: Path, small: tuple[str, ...]
) -> None:
    answer = warp("train", "--out", tmp_path / "run", *small).ok()
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["counts"] == {"train": 1260, "validation": 140, "test": 397}
    assert answer.out.startswith(f"trained {results['parameters']:,} parameters; right on train .")
    assert "train: epoch 1, update" in answer.err
    run = load_run(tmp_path / "run")
    assert [len(run.parts.rows(code)) for code in (VALIDATION, TEST)] == [140, 397]
    assert np.array_equal(run.parts.labels, run.table.y)
    assert not (tmp_path / "run" / CHECKPOINT).exists()
    again = warp("train", "--out", tmp_path / "run", *small, "--json").ok()
    assert (again.err, again.out) == ("", (tmp_path / "run" / "results.json").read_text())


def test_nothing_is_held_out_unasked(points: Path, tmp_path: Path) -> None:
    arrays = dict(np.load(points))
    np.savez(tmp_path / "all.npz", x=arrays["x"], y=arrays["y"])
    settings = [f"data.path={tmp_path / 'all.npz'}", "model.name=mlp", "training.epochs=1", "device=cpu"]
    results = train_run(resolve(overrides=settings), tmp_path / "all")
    assert results["counts"] == {"train": 60, "validation": 0, "test": 0}
    results = train_run(resolve(overrides=[*settings, "data.holdout=0.2"]), tmp_path / "held")
    assert results["counts"] == {"train": 48, "validation": 0, "test": 12}
    held = load_run(tmp_path / "held").parts.rows(TEST)
    assert np.unique(arrays["y"][held], return_counts=True)[1].tolist() == [4, 4, 4]


def test_a_killed_run_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    settings = ["training.epochs=12", "model.options.width=4", "device=cpu", "checkpoint_seconds=0"]
    command = [sys.executable, "-m", "warp_unlearning", "train", "--threads", "1", "--out", str(tmp_path / "killed")]
    command += [part for setting in settings for part in ("-o", setting)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        while not (tmp_path / "killed" / CHECKPOINT).exists():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "killed" / "manifest.json").exists()
    assert subprocess.run(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True).returncode == 0
    train_run(resolve(overrides=settings), tmp_path / "whole")
    assert digest(tmp_path / "killed") == digest(tmp_path / "whole")


def test_a_diverged_run_keeps_the_last_finite_weights_and_may_be_tried_again(
    warp: Warp, points: Path, tmp_path: Path
) -> None:
    settings, out = ("--data", points, "--model", "mlp", "--device", "cpu", "-o", "training.epochs=6"), tmp_path / "run"
    answer = warp("train", *settings, "-o", "training.lr=1e9", "--out", out)
    assert answer.code == 1
    assert "are the last finite ones and are kept. Lower the learning rate (training.lr=1000000000.0)" in answer.err
    assert f"(written to {out / 'diverged.safetensors'})" in answer.err
    kept = read_weights(out / "diverged.safetensors").state
    assert all(bool(tensor.isfinite().all()) for tensor in kept.values())
    assert not (out / "results.json").exists()
    warp("train", *settings, "--out", out).ok()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("-o", "training.lrr=1"), "did you mean 'lr'"),
        (("-o", "training.epochs=0"), "training.epochs is 0"),
        (("--data", "nothing.npz"), "there is nothing at nothing.npz"),
        (("--validation", "1"), "validation is 1"),
        (("--device", "tpu"), "cannot be used"),
        (("--model", "resnet19"), "did you mean 'resnet18'"),
        (("-o", "noequals"), "not of the form key.sub=value"),
    ],
)
def test_bad_settings_are_one_line_and_leave_nothing(
    warp: Warp, tmp_path: Path, more: tuple[str, ...], message: str
) -> None:
    warp("train", "--out", tmp_path / "run", *more).refused(message)
    assert not (tmp_path / "run").exists()
