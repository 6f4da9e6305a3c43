from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from warp_unlearning.models.weights import model_digest, read_weights

Warp = Callable[..., Any]


def digest(run: Path) -> str:
    return model_digest(read_weights(run / "model.safetensors").state)


def refused(answer: Any, *parts: str, code: int = 2) -> None:
    """One line on the error stream with all the parts, nothing on the other."""
    assert (answer.code, answer.out) == (code, "")
    (line,) = [line for line in answer.err.splitlines() if not line.startswith(("train: ", "unlearn"))]
    assert line.startswith("error: ")
    for part in parts:
        assert part in line


def test_a_user_sees_progress_and_the_result(warp: Warp, tmp_path: Path, small: tuple[str, ...]) -> None:
    answer = warp("train", "--out", tmp_path / "run", *small)
    assert answer.code == 0
    lines = answer.err.splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "train: epoch 1, update 20/40",
        "train: epoch 2, update 40/40",
    ]
    assert answer.out.startswith("trained 5,142 parameters; accuracy: train 0.")
    assert answer.out.endswith(f"written to {tmp_path / 'run'}\n")


def test_json_is_the_metrics_and_the_same_command_again_does_nothing(
    warp: Warp, trained: Path, small: tuple[str, ...]
) -> None:
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in trained.iterdir()}
    answer = warp("train", "--out", trained, "--json", *small)
    assert (answer.code, answer.err) == (0, "")
    assert json.loads(answer.out) == json.loads((trained / "metrics.json").read_text())
    assert {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in trained.iterdir()} == before


def test_the_configuration_given_back_makes_the_same_weights(warp: Warp, trained: Path, tmp_path: Path) -> None:
    assert warp("train", "--config", trained / "config.yaml", "--out", tmp_path / "again").code == 0
    assert digest(tmp_path / "again") == digest(trained)


def test_flags_go_over_overrides_and_overrides_over_the_file(warp: Warp, points: Path, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("training: {epochs: 9, lr: 1e-2, batch_size: 16}\nseed: 1\nmodel: {name: mlp}\ndevice: cpu\n")
    more = ("--data", "npz", "--data-path", points, "--epochs", "1", "--seed", "4")
    out = tmp_path / "run"
    answer = warp("train", "-c", file, "-o", "training.epochs=8", "-o", "training.batch_size=8", *more, "--out", out)
    assert answer.code == 0
    config = (out / "config.yaml").read_text()
    for part in ("epochs: 1\n", "lr: 0.01\n", "batch_size: 8\n", "seed: 4\n"):
        assert part in config


@pytest.mark.parametrize("name", ["2024", "1e5", "null", "a: b", "#1", "ü 'x'"])
def test_data_may_have_any_name(
    warp: Warp, points: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    shutil.copy(points, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    more = ("--data", "npz", "--data-path", name, "--epochs", "1", "-o", "model.name=mlp")
    assert warp("train", *more, "--out", "run").code == 0
    assert warp("train", "--config", "run/config.yaml", "--out", "again").code == 0
    assert digest(tmp_path / "run") == digest(tmp_path / "again")


def test_seeds_decide(warp: Warp, trained: Path, tmp_path: Path, small: tuple[str, ...]) -> None:
    for name, seed in (("same", "0"), ("other", "1")):
        assert warp("train", "--out", tmp_path / name, "--seed", seed, *small).code == 0
    assert digest(tmp_path / "same") == digest(trained) != digest(tmp_path / "other")


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["--data", "digit"], ["no data set 'digit'", "did you mean 'digits'?"]),
        (["--data", "npz"], ["npz needs a path", "numpy.savez"]),
        (["--data", "npz", "--data-path", "/none.npz"], ["nothing at /none.npz", "numpy.savez"]),
        (["--data-path", "/x"], ["nothing at /x", "give a folder"]),
        (["--epochs", "0"], ["training.epochs is 0", "greater than or equal to 1"]),
        (["-o", "training.epoch=1"], ["training has no key 'epoch'", "did you mean 'epochs'?"]),
        (["-o", "trainign.epochs=1"], ["no key 'trainign'", "did you mean 'training'?"]),
        (["-o", "training.lr=fast"], ["training.lr is 'fast'", "valid number"]),
        (["-o", "training.lr"], ["override 'training.lr'", "key.sub=value"]),
        (["-c", "/none.yaml"], ["/none.yaml cannot be read", "give a YAML file"]),
        (["-o", "model.name=mlpp"], ["no model is called 'mlpp'", "did you mean 'mlp'?"]),
        (["-o", "model.options.widht=3"], ["no option 'widht'", "did you mean 'width'?"]),
        (["-o", "model.options.width=0"], ["width is 0", "whole number of at least 1"]),
        (["-o", "model.options.classes=3"], ["label", "the model has 3 classes", "remove the row"]),
        (["-o", "model.name=custom"], ["one of your own", "--model FILE.py:build"]),
        (["--device", "gpu"], ["the device 'gpu' cannot be used", "try auto or cpu"]),
        (["--model", "network.py"], ["'network.py' names no model builder", "FILE.py:NAME"]),
        (["--model", "/none.py:build"], ["/none.py is no file", "give the path"]),
    ],
)
def test_bad_input_is_named_and_nothing_is_written(
    warp: Warp, tmp_path: Path, args: list[str], parts: list[str]
) -> None:
    refused(warp("train", "--out", tmp_path / "run", *args), *parts)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(warp: Warp, tmp_path: Path) -> None:
    refused(warp("train", "--out", tmp_path / "run", "--device", "cuda"), "'cuda' cannot be used", "try auto or cpu")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("biuld", ["has no 'biuld'", "did you mean 'build'?"]),
        ("constant", ["'constant'", "is a int", "name a function"]),
        ("nothing", ["returned a NoneType", "return an nn.Module"]),
        ("broken", ["failed to build a model: ValueError: no such thing", "mend it"]),
    ],
)
def test_a_network_that_cannot_be_built(warp: Warp, tmp_path: Path, network: Path, name: str, parts: list[str]) -> None:
    refused(warp("train", "--out", tmp_path / "run", "--model", f"{network}:{name}"), *parts)
    assert not (tmp_path / "run").exists()


def test_a_network_for_other_examples(warp: Warp, tmp_path: Path, network: Path, points: Path) -> None:
    more = ("--data", "npz", "--data-path", points, "--model", f"{network}:build")
    refused(warp("train", "--out", tmp_path / "run", *more), "cannot take an example of the training set", "(4,)")
    assert not (tmp_path / "run").exists()


IMAGES = np.zeros((30, 5, 5), dtype=np.uint8)
LABELS = np.arange(30) % 3


@pytest.mark.parametrize(
    ("arrays", "parts"),
    [
        ({"x": IMAGES, "y": LABELS + (LABELS == 2)}, ["labels from 0 to 3 but none for class 2", "number the classes"]),
        ({"x": IMAGES, "y": LABELS - 1}, ["has the label -1", "number the classes"]),
        ({"x": IMAGES, "y": LABELS.astype(float)}, ["type float64", "whole-number class"]),
        ({"x": IMAGES[:-1], "y": LABELS}, ["29 rows in x and 30 in y", "as many"]),
        ({"x": np.full((30, 4), np.nan), "y": LABELS}, ["row 0 of x is not finite", "mend or drop"]),
        ({"x": np.full((30, 4), np.inf), "y": LABELS}, ["row 0 of x is not finite", "mend or drop"]),
        ({"x": IMAGES.astype(object), "y": LABELS}, ["not a whole .npz of plain arrays", "numpy.savez"]),
        ({"x": IMAGES}, ["no array 'y'", "numpy.savez"]),
        ({"x": IMAGES, "y": LABELS, "x_test": IMAGES}, ["only one of x_test and y_test", "both or neither"]),
        ({"x": IMAGES, "y": LABELS, "x_test": IMAGES[:, :4], "y_test": LABELS}, ["(1, 4, 5)", "must be alike"]),
        ({"x": IMAGES[:0], "y": LABELS[:0]}, ["shape (0,)", "give one whole-number class a row"]),
    ],
)
def test_data_that_cannot_be_used(warp: Warp, tmp_path: Path, arrays: dict[str, Any], parts: list[str]) -> None:
    np.savez(tmp_path / "data.npz", **arrays)
    refused(warp("train", "--out", tmp_path / "run", "--data", "npz", "--data-path", tmp_path / "data.npz"), *parts)
    assert not (tmp_path / "run").exists()


def test_a_truncated_data_file(warp: Warp, tmp_path: Path, points: Path) -> None:
    (tmp_path / "data.npz").write_bytes(points.read_bytes()[:-100])
    more = ("--data", "npz", "--data-path", tmp_path / "data.npz")
    refused(warp("train", "--out", tmp_path / "run", *more), "data.npz is not a whole .npz", "write it again")


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("data_batch_1.bin", b"0123456789", ["data_batch_1.bin has 10 bytes", "get it again"]),
        ("data_batch_1.bin", bytes(3073), ["the records have MD5", "damaged or was changed, get it again"]),
        ("data_batch_1", b"no pickle", ["data_batch_1 has MD5", "the official file has", "get it again"]),
        ("readme.txt", b"", ["there is no CIFAR-10 at", "official batches"]),
    ],
)
def test_a_damaged_cifar10(warp: Warp, tmp_path: Path, name: str, content: bytes, parts: list[str]) -> None:
    folder = tmp_path / "cifar"
    folder.mkdir()
    (folder / name).write_bytes(content)
    refused(warp("train", "--out", tmp_path / "run", "--data", "cifar10", "--data-path", folder), str(folder), *parts)
    assert not (tmp_path / "run").exists()


def test_a_folder_of_something_else_is_left_alone(warp: Warp, tmp_path: Path, small: tuple[str, ...]) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    refused(warp("train", "--out", tmp_path, *small), f"{tmp_path} exists", "choose another --out")
    refused(warp("train", "--out", tmp_path / "notes.txt", *small), "notes.txt exists", "choose another --out")
    refused(warp("train", "--out", tmp_path / "notes.txt" / "run", *small), "Not a directory")
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_a_run_with_other_settings_is_left_alone(warp: Warp, trained: Path, small: tuple[str, ...]) -> None:
    answer = warp("train", "--out", trained, *small, "--seed", "1", "-o", "training.lr=0.1")
    refused(answer, "seed: 0 there, 1 now", "training.lr: 0.05 there, 0.1 now", "choose another --out")


def test_a_diverging_training_is_code_one(warp: Warp, tmp_path: Path, small: tuple[str, ...]) -> None:
    answer = warp("train", "--out", tmp_path / "run", *small, "-o", "training.lr=1e30")
    refused(answer, "lower the learning rate (lr=1e+30)", code=1)
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["config.yaml"]


def test_the_threads_asked_for_are_used(monkeypatch: pytest.MonkeyPatch, warp: Warp, tmp_path: Path) -> None:
    from warp_unlearning.runs import cores

    used: list[int] = []
    monkeypatch.setattr(cores, "use_threads", used.append)
    warp("train", "--out", tmp_path / "run", "--data", "none")
    assert used == [1]
