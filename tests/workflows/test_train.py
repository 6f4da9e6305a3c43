from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from warp_unlearning.workflows.source import load_source, validation_split
from warp_unlearning.workflows.train import CHECKPOINT, TrainRequest, train_run

from warp_unlearning.cli.main import main
from warp_unlearning.config import resolve
from warp_unlearning.errors import DataError, DivergedError, InputError
from warp_unlearning.models.weights import model_digest, read_weights
from warp_unlearning.runs.directory import open_run
from warp_unlearning.training.update import Update
from warp_unlearning.workflows import train as module

Train = Callable[..., Path]


class Stopped(BaseException):
    """Stands for a process that ends here, whatever it was doing."""


def digest(run: Path) -> str:
    return model_digest(read_weights(run / "model.safetensors").state)


def hidden(folder: Path) -> list[str]:
    return [p.name for p in folder.rglob(".*")]


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {str(p): (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.rglob("*") if p.is_file()}


def test_a_run_holds_what_is_promised_for_its_owner_alone(trained: Path) -> None:
    files = {p.name for p in trained.iterdir()}
    assert files == {
        "config.yaml",
        "manifest.json",
        "metrics.json",
        "model.safetensors",
        "train.npy",
        "validation.npy",
    }
    assert all((trained / name).stat().st_mode & 0o777 == 0o600 for name in files)
    assert open_run(trained).kind == "train"


def test_metrics_are_those_of_the_model_and_the_parts_are_disjoint(trained: Path) -> None:
    metrics = json.loads((trained / "metrics.json").read_text())
    source = load_source(trained)
    parts = {"train": source.known, "validation": source.validation}
    assert len(np.intersect1d(source.known, source.validation)) == 0
    assert len(source.known) + len(source.validation) == 120
    assert metrics["counts"] == {"train": 108, "validation": 12, "test": 30}
    assert metrics["schema_version"] == 1
    model = source.model.eval()
    for what, index in parts.items():
        x, y = source.data.train.x[index], source.data.train.y[index]
        assert metrics["accuracy"][what] == float((model(x).argmax(1) == y).double().mean())
    right = (model(source.data.test.x).argmax(1) == source.data.test.y).double().mean()
    assert metrics["accuracy"]["test"] == float(right)
    assert metrics["accuracy"]["train"] > 0.5
    assert metrics["parameters"] == sum(p.numel() for p in model.parameters())


def test_a_complete_run_is_not_touched_again(trained: Path, train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot(trained)
    monkeypatch.setattr(module, "Training", None)
    train(trained)
    assert snapshot(trained) == before


def test_the_seed_decides_the_weights_and_nothing_else_does(trained: Path, train: Train, tmp_path: Path) -> None:
    torch.manual_seed(1234)
    assert digest(train(tmp_path / "again")) == digest(trained)
    assert digest(train(tmp_path / "other", "seed=1")) != digest(trained)


def test_the_configuration_beside_a_run_makes_it_again(trained: Path, tmp_path: Path) -> None:
    train_run(TrainRequest(resolve(file=trained / "config.yaml"), tmp_path / "again"))
    for name in ("model.safetensors", "train.npy", "validation.npy", "metrics.json", "config.yaml"):
        assert (tmp_path / "again" / name).read_bytes() == (trained / name).read_bytes()


def test_without_validation_everything_is_learned_from(train: Train, tmp_path: Path) -> None:
    run = train(tmp_path / "run", "validation=0")
    source = load_source(run)
    assert source.known.tolist() == list(range(120))
    assert source.validation.tolist() == []
    assert set(json.loads((run / "metrics.json").read_text())["accuracy"]) == {"train", "test"}


def test_the_validation_set_keeps_the_classes_in_proportion(settings: tuple[str, ...], trained: Path) -> None:
    source = load_source(trained)
    known, held = validation_split(resolve(overrides=settings), source.data)
    assert held.tolist() == source.validation.tolist()
    assert known.tolist() == source.known.tolist()
    assert np.bincount(source.data.train.y.numpy()[held]).tolist() == [4, 4, 4]


@pytest.mark.parametrize("updates", [1, 4, 5, 11, 12])
def test_a_run_stopped_in_any_epoch_goes_on_to_the_same_weights(
    trained: Path, settings: tuple[str, ...], tmp_path: Path, updates: int
) -> None:
    request = TrainRequest(resolve(overrides=settings), tmp_path / "run", checkpoint_seconds=0)
    seen: list[int] = []

    def stop(update: Update) -> None:
        seen.append(update.step)
        if len(seen) == updates:
            raise Stopped

    with pytest.raises(Stopped):
        train_run(request, watch=stop)
    assert not (request.out / "manifest.json").exists()
    # Every epoch but the one that was running is in the checkpoint, and is not done again.
    done = (updates - 1) // 4
    assert (request.out / CHECKPOINT).exists() == (done > 0)
    again: list[int] = []
    train_run(request, watch=lambda update: again.append(update.step))
    assert again == list(range(4 * done + 1, 13))
    assert digest(request.out) == digest(trained)
    assert not (request.out / CHECKPOINT).exists()
    open_run(request.out)


def test_a_run_stopped_at_any_write_is_whole_after_the_next_start(
    trained: Path, settings: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace
    for stop_at in range(20):
        calls = 0

        def stop(*paths: Any, stop_at: int = stop_at) -> None:
            nonlocal calls
            if calls == stop_at:
                raise Stopped
            calls += 1
            replace(*paths)

        out = tmp_path / str(stop_at)
        request = TrainRequest(resolve(overrides=settings), out, checkpoint_seconds=0)
        monkeypatch.setattr(os, "replace", stop)
        try:
            train_run(request)
        except Stopped:
            assert not (out / "manifest.json").exists()
            assert hidden(out) == []
        else:
            # config, three checkpoints, model, two index files, metrics, manifest
            assert stop_at == 9
            return
        finally:
            monkeypatch.setattr(os, "replace", replace)
        train_run(request)
        open_run(out)
        assert digest(out) == digest(trained)
    pytest.fail("a run of nine files was expected")


def test_checkpoints_are_as_far_apart_as_asked(
    settings: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    saved: list[float] = []
    save = module.save_weights

    def record(path: Path, *args: Any, **options: Any) -> None:
        if path.name == CHECKPOINT:
            saved.append(now[0])
        save(path, *args, **options)

    def tick(update: Update) -> None:
        now[0] += 1.0

    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    monkeypatch.setattr(module, "save_weights", record)
    config = resolve(overrides=[*settings, "training.epochs=6"])
    train_run(TrainRequest(config, tmp_path / "run", checkpoint_seconds=7), watch=tick)
    # Epochs end at 4, 8, ..., 24.
    assert saved == [8.0, 16.0, 24.0]


def test_other_data_under_the_same_name_are_another_run(tmp_path: Path, train: Train, blobs: Path) -> None:
    arrays = dict(np.load(blobs))
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)
    train(tmp_path / "run", f'data.path="{path}"')
    arrays["x"][0, 0] += 1
    np.savez(path, **arrays)
    with pytest.raises(InputError, match=r"another configuration \(resolved\.data: '\w+' there, '\w+' now"):
        train(tmp_path / "run", f'data.path="{path}"')


def test_another_network_under_the_same_name_is_another_run(settings: tuple[str, ...], tmp_path: Path) -> None:
    request = TrainRequest(resolve(overrides=[*settings, "model.name=custom"]), tmp_path / "run")
    train_run(request, builder=lambda: nn.Linear(6, 3))
    with pytest.raises(InputError, match=r"resolved\.initial_model"):
        train_run(request, builder=lambda: nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3)))


@pytest.mark.parametrize(
    ("more", "kind", "message"),
    [
        ("model.options={width: 0}", InputError, "mlp has no option 'width'"),
        ("model.options={hidden: x}", InputError, "hidden"),
        ("model.options={classes: 2}", DataError, "the label 2 at row .* the model has 2 classes"),
        ("model.options={inputs: 5}", DataError, r"cannot take an example of the training set, of shape \(6,\)"),
        ("model.name=small_resnet", InputError, "takes images .* use the model 'mlp'"),
        ("model.name=resnet", InputError, "no model is called 'resnet'; did you mean 'resnet18'"),
        ("model.name=custom", InputError, "--model FILE.py:build"),
        ("validation=0.999", DataError, "the training set is empty"),
        ("device=cuda:99", InputError, "the device 'cuda:99' cannot be used: .*; try auto or cpu"),
        ("device=gpu", InputError, "the device 'gpu' cannot be used: .*; try auto or cpu"),
        ("device=meta", InputError, "the device 'meta' cannot be used"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(
    train: Train, tmp_path: Path, more: str, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        train(tmp_path / "run", more)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "more",
    [
        ("training.lr=1e30",),
        # One update: its loss is finite, the weights it leaves are not.
        ("training.lr=1e39", "training.epochs=1", "training.batch_size=200"),
    ],
)
def test_a_training_that_diverges_says_so_and_is_not_complete(
    train: Train, tmp_path: Path, more: tuple[str, ...]
) -> None:
    with pytest.raises(DivergedError, match="lower the learning rate") as error:
        train(tmp_path / "run", *more)
    assert error.value.exit_code == 1
    assert {p.name for p in (tmp_path / "run").iterdir()} <= {"config.yaml", CHECKPOINT}


def start(monkeypatch: pytest.MonkeyPatch, out: Path, epochs: int) -> BaseProcess:
    """`warp train` in a process of its own, forked from one that has torch loaded, as loading takes seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["warp_unlearning.workflows.train", "torch._dynamo"])
    # Epochs of three updates, so that a kill often meets a checkpoint that is being written.
    settings = ["-o", "model.options.width=2", "-o", "training.batch_size=512", "-o", f"training.epochs={epochs}"]
    command = ["warp", "train", "--out", str(out), "--checkpoint-seconds", "0", "--threads", "1", *settings]
    monkeypatch.setattr(sys, "argv", command)
    process = context.Process(target=main)
    process.start()
    return process


def kill(process: BaseProcess, file: Path, delay: float) -> None:
    """SIGKILL, `delay` seconds after `file` was written anew."""
    before = file.stat().st_mtime_ns if file.exists() else 0
    while process.is_alive() and (not file.exists() or file.stat().st_mtime_ns == before):
        time.sleep(0.001)
    time.sleep(delay)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.long
def test_a_run_killed_again_and_again_ends_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    epochs = 40
    whole = start(monkeypatch, tmp_path / "whole", epochs)
    out = tmp_path / "killed"
    draw = random.Random(os.urandom(8))
    kill(start(monkeypatch, out, epochs), out / "config.yaml", draw.uniform(0, 0.02))
    reached = [0]
    for _ in range(6):
        kill(start(monkeypatch, out, epochs), out / CHECKPOINT, draw.uniform(0, 0.05))
        reached.append(int(read_weights(out / CHECKPOINT).state["epoch"]))
        assert {p.name for p in out.iterdir() if p.name[0] != "."} == {"config.yaml", CHECKPOINT}
    # Each start went on from where the last was killed; starting anew would have fallen behind it.
    assert reached == sorted(set(reached))
    last = start(monkeypatch, out, epochs)
    for process in (last, whole):
        process.join(120)
        assert process.exitcode == 0
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert hidden(out) == []
    assert not (out / CHECKPOINT).exists()
    open_run(out)
