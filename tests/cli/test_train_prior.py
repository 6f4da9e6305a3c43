from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from warp_unlearning.cli.subject import load_run
from warp_unlearning.data.preprocess import load_data, pixels_of
from warp_unlearning.models.generator import load_prior, saw

Warp = Callable[..., Any]
SMALL = ("--threads", "1", "--epochs", "1", "-o", "generator.width=2", "-o", "generator.latent=4", "--device", "cpu")


@pytest.fixture(scope="module")
def prior(warp: Warp, unlearned: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("prior")
    np.save(folder / "a: 1.npy", np.array([0, 5]))
    answer = warp("train-prior", "--out", folder / "run", "--for", unlearned, "--exclude", folder / "a: 1.npy", *SMALL)
    return folder / "run", answer


def test_a_user_sees_progress_and_the_result(prior: tuple[Path, Any]) -> None:
    out, answer = prior
    assert answer.code == 0
    assert answer.err.startswith("train-prior: epoch 1, update ")
    counts = json.loads((out / "metrics.json").read_text())["counts"]
    lines = answer.out.splitlines()
    assert lines[0].endswith(f"parameters on {counts['train']:,} images; {counts['excluded']} left out")
    assert lines[1].startswith("images learned from: PSNR ")
    assert lines[2].startswith("images held out: PSNR ")
    assert lines[3] == f"written to {out}; the generator is {out / 'prior.safetensors'}"


def test_nothing_that_was_forgotten_was_seen(prior: tuple[Path, Any], unlearned: Path) -> None:
    _, header = load_prior(prior[0])
    forgotten = np.append(load_run(unlearned).forgotten, [0, 5])
    data = load_data("digits")
    images = pixels_of(data).images(data.train.x)
    assert saw(header, images[torch.from_numpy(forgotten)]).tolist() == []
    assert len(saw(header, images)) == len(np.load(prior[0] / "train.npy")) > 1000


def test_json_is_the_metrics_and_the_same_command_again_does_nothing(
    warp: Warp, prior: tuple[Path, Any], unlearned: Path
) -> None:
    out = prior[0]
    again = ("--for", unlearned, "--exclude", out.parent / "a: 1.npy", *SMALL, "--json")
    answer = warp("train-prior", "--out", out, *again)
    assert (answer.code, answer.err) == (0, "")
    assert json.loads(answer.out) == json.loads((out / "metrics.json").read_text())


def test_a_prior_that_left_nothing_out_says_so(warp: Warp, tmp_path: Path) -> None:
    answer = warp("train-prior", "--out", tmp_path / "run", "--conditional", "--seed", "4", *SMALL)
    assert answer.code == 0
    assert "nothing was left out: no image of the training part can be attacked with this prior" in answer.out
    generator, header = load_prior(tmp_path / "run")
    assert generator.classes == 10
    assert header["seed"] == 4


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["--data", "digit"], ["no data set 'digit'", "did you mean 'digits'?"]),
        (["-o", "training.epoch=1"], ["training has no key 'epoch'", "did you mean 'epochs'?"]),
        (["--for", "/none"], ["there is no run directory /none"]),
        (["--exclude", "/none.npy"], ["there is no file /none.npy; give row numbers"]),
        (["--device", "gpu"], ["the device 'gpu' cannot be used"]),
    ],
)
def test_bad_input_is_named_and_nothing_is_written(
    warp: Warp, tmp_path: Path, args: list[str], parts: list[str]
) -> None:
    answer = warp("train-prior", "--out", tmp_path / "run", "--threads", "1", *args)
    assert (answer.code, answer.out) == (2, "")
    (line,) = answer.err.splitlines()
    assert line.startswith("error: ")
    assert all(part in line for part in parts)
    assert not (tmp_path / "run").exists()
