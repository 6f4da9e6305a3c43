from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from warp_unlearning.models.weights import model_digest, read_weights, save_weights

Warp = Callable[..., Any]
COB = ("--symmetry", "change_of_basis")


def digest(run: Path) -> str:
    return model_digest(read_weights(run / "model.safetensors").state)


def refused(answer: Any, *parts: str) -> None:
    """One line on the error stream with all the parts, nothing on the other."""
    assert (answer.code, answer.out) == (2, "")
    (line,) = answer.err.splitlines()
    assert line.startswith("error: ")
    for part in parts:
        assert part in line


def test_a_user_sees_how_far_the_weights_went_and_that_the_function_stayed(
    warp: Warp, trained: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    answer = warp("teleport", trained, *COB, "-o", "spread=0.5", "--forget-class", "3", "--out", out)
    assert (answer.code, answer.err) == (0, "")
    found = json.loads((out / "certificate.json").read_text())
    lines = answer.out.splitlines()
    moved = sum(layer["moved"] > 0 or layer["moved_unreached"] > 0 for layer in found["layers"])
    assert lines[0].startswith(f"change_of_basis moved {moved} tensors by {found['relative_move']:.3g} of the length")
    assert any(line.endswith("; at most 0.0001: holds") for line in lines)
    for what in ("retain", "held_out", "forget"):
        ends = [f"{found[what][key]:.4g}" for key in ("loss_before", "loss_after")]
        assert ["loss", "on", *what.split("_"), ends[0], "->", ends[1]] in [line.split() for line in lines]
    energies = f"{found['energy_before']:.4g} -> {found['energy_after']:.4g}"
    assert f"  forget gradient energy {energies}" in lines
    assert "  pinned by output: fc.weight (10 channels)" in lines
    assert lines[-1] == f"written to {out}; the certificate is {out / 'certificate.json'}"
    assert found["settings"]["spread"] == 0.5


def test_json_alone_is_on_the_output_and_a_second_start_does_nothing(warp: Warp, trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    answer = warp("teleport", trained, *COB, "--out", out, "--json")
    assert (answer.code, answer.err) == (0, "")
    assert json.loads(answer.out) == json.loads((out / "certificate.json").read_text())
    before = digest(out)
    again = warp("teleport", trained, *COB, "--out", out, "--json")
    assert (again.code, again.out) == (0, answer.out)
    assert digest(out) == before != digest(trained)


def test_accuracies_are_those_of_the_model_it_was(warp: Warp, trained: Path, unlearned: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    both = ("--symmetry", "permutation", *COB)
    answer = warp("teleport", unlearned, *both, "--out", out)
    assert answer.code == 0
    assert answer.out.startswith("permutation then change_of_basis moved ")
    assert "note: the examples to forget are the 50 that this model was asked to forget\n" in answer.err
    scores = [
        json.loads(warp("evaluate", trained, run, "--split", unlearned / "split", "--json").out)
        for run in (unlearned, out)
    ]
    assert scores[0]["models"]["unlearned"]["accuracy"] == scores[1]["models"]["unlearned"]["accuracy"]


def test_a_function_that_was_not_kept_is_code_one_and_still_written(warp: Warp, trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    far = ("-o", "energy=0.1", "-o", "aim=random", "-o", "step_size=2", "--forget-class", "3")
    answer = warp("teleport", trained, "--symmetry", "null_space", *far, "--out", out)
    assert answer.code == 1
    assert "at most 0.01: does not hold" in answer.out
    assert not json.loads((out / "certificate.json").read_text())["verdict"]["holds"]
    assert warp("teleport", trained, "--symmetry", "null_space", *far, "--out", out, "--json").code == 1
    lenient = ("--tolerance", "1000", "--out", tmp_path / "lenient")
    assert warp("teleport", trained, "--symmetry", "null_space", *far, *lenient).code == 0


def test_a_fixed_seed_is_marked(warp: Warp, trained: Path, tmp_path: Path) -> None:
    runs = [tmp_path / "first", tmp_path / "second"]
    for run in runs:
        answer = warp("teleport", trained, *COB, "--defense-seed", "7", "--out", run)
        assert answer.code == 0
        assert "  experiment only: whoever knows the seed can undo this move\n" in answer.out
        assert json.loads((run / "certificate.json").read_text())["experiment_only"]
    assert digest(runs[0]) == digest(runs[1])


def test_a_network_of_ones_own(warp: Warp, network: Path, tmp_path: Path) -> None:
    own = ("--model", f"{network}:build")
    assert warp("train", "--out", tmp_path / "trained", "-o", "training.epochs=1", *own).code == 0
    answer = warp("teleport", tmp_path / "trained", *COB, "--out", tmp_path / "run", *own)
    assert answer.code == 0
    refused(warp("teleport", tmp_path / "trained", *COB, "--out", tmp_path / "x"), "one of your own", "--model")


def test_weights_of_half_precision_become_full_with_a_note(warp: Warp, trained: Path, tmp_path: Path) -> None:
    weights = read_weights(trained / "model.safetensors")
    half = {n: t.half() if t.is_floating_point() else t for n, t in weights.state.items()}
    save_weights(tmp_path / "half.safetensors", half, header=weights.header)
    answer = warp("teleport", tmp_path / "half.safetensors", *COB, "--out", tmp_path / "run")
    assert answer.code == 0
    assert "note: the weights are torch.float16 and the result is torch.float32" in answer.err


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["--symmetry", "chang_of_basis"], ["unknown symmetry 'chang_of_basis'", "did you mean 'change_of_basis'?"]),
        ([*COB, "-o", "spraed=0.5"], ["change_of_basis: there is no option 'spraed'", "did you mean 'spread'?"]),
        (["--symmetry", "permutation", "-o", "spread=0.5"], ["permutation: there is no option 'spread'"]),
        ([*COB, "-o", "spread"], ["'spread' is not of the form key.sub=value"]),
        ([*COB, "-o", "spread=wide"], ["change_of_basis: spread is 'wide'", "it must be a number"]),
        ([*COB, "-o", "spread=1"], ["could be zero or negative", "give a spread below 1"]),
        ([*COB, "-o", "spread=-0.5"], ["spread is -0.5", "above 0"]),
        ([*COB, "-o", "law=normal"], ["change_of_basis: law is 'normal'", "'truncated_normal'"]),
        (["--symmetry", "null_space", "-o", "energy=0"], ["energy to protect is 0", "above 0 and at most 1"]),
        (["--symmetry", "null_space", "-o", "energy=1.5"], ["energy to protect is 1.5", "above 0 and at most 1"]),
        (["--symmetry", "null_space", "--tolerance", "-1"], ["the tolerance is -1.0", "at least 0"]),
        ([*COB, "--forget", "/none.npy"], ["/none.npy cannot be read (", "No such file"]),
        ([*COB, "--forget-class", "11"], ["no training example has label 11"]),
        ([*COB, "--forget", "x.npy", "--forget-class", "1"], ["forget.label and forget.rows cannot be used here"]),
        ([*COB, "-o", "model.nmae=mlp"], ["model has no key 'nmae'", "did you mean 'name'?"]),
        ([*COB, "--config", "/none.yaml"], ["/none.yaml cannot be read"]),
        ([*COB, "--device", "gpu"], ["the device 'gpu' cannot be used"]),
    ],
)
def test_bad_requests_are_named_and_nothing_is_written(
    warp: Warp, trained: Path, tmp_path: Path, args: list[str], parts: list[str]
) -> None:
    refused(warp("teleport", trained, "--out", tmp_path / "run", *args), *parts)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["m", "--out", "x"], "Missing option '--symmetry'"),
        (["m", *COB], "Missing option '--out'"),
        ([*COB, "--out", "x"], "Missing argument"),
        (["m", *COB, "--out", "x", "--defense-seed", "-1"], "Invalid value for '--defense-seed'"),
        (["m", *COB, "--out", "x", "--tolerance", "much"], "Invalid value for '--tolerance'"),
    ],
)
def test_bad_usage_is_code_two(warp: Warp, args: list[str], part: str) -> None:
    answer = warp("teleport", *args)
    assert answer.code == 2
    assert part in answer.err
    assert not Path("x").exists()


def test_sources_that_are_missing_or_damaged(warp: Warp, trained: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "run")
    refused(warp("teleport", tmp_path / "none", *COB, *out), f"nothing at {tmp_path / 'none'}", "weight file")
    copy = Path(shutil.copytree(trained, tmp_path / "copy"))
    (copy / "model.safetensors").unlink()
    refused(warp("teleport", copy, *COB, *out), "model.safetensors is missing or not what the manifest says")
    short = tmp_path / "model.safetensors"
    short.write_bytes((trained / "model.safetensors").read_bytes()[:-9])
    refused(warp("teleport", short, *COB, *out), "is no whole safetensors file")
    state = read_weights(trained / "model.safetensors").state
    state["fc.bias"][0] = float("nan")
    torch.save(state, tmp_path / "nan.pt")
    refused(warp("teleport", tmp_path / "nan.pt", *COB, *out, "-o", "model.options.width=4"), "not finite")
    assert not (tmp_path / "run").exists()


def test_a_network_that_cannot_be_traced_is_named(warp: Warp, tmp_path: Path) -> None:
    file = tmp_path / "branching.py"
    file.write_text(
        "from torch import nn\n"
        "class Branching(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.a, self.b = nn.Linear(64, 6), nn.Linear(6, 10)\n"
        "    def forward(self, x):\n"
        "        h = self.a(x.flatten(1)).relu()\n"
        "        return self.b(h if h.sum() > 0 else 2 * h)\n"
    )
    own = ("--model", f"{file}:Branching")
    assert warp("train", "--out", tmp_path / "trained", "-o", "training.epochs=1", *own).code == 0
    answer = warp("teleport", tmp_path / "trained", *COB, "--out", tmp_path / "run", *own)
    refused(answer, "Branching cannot be traced by torch.fx", "use a symmetry that needs no trace")
    assert not (tmp_path / "run").exists()
    null = ("--symmetry", "null_space", "-o", "aim=random", "-o", "energy=0.9")
    assert warp("teleport", tmp_path / "trained", *null, "--out", tmp_path / "run", *own).code == 0


def test_data_that_are_not_finite(warp: Warp, points: Path, tmp_path: Path) -> None:
    data = Path(shutil.copy(points, tmp_path / "data.npz"))
    settings = ("--data", "npz", "--data-path", data, "-o", "model.name=mlp", "--epochs", "1")
    assert warp("train", "--out", tmp_path / "trained", *settings).code == 0
    arrays = dict(np.load(data))
    arrays["x"][7, 1] = np.nan
    np.savez(data, **arrays)
    refused(warp("teleport", tmp_path / "trained", *COB, "--out", tmp_path / "run"), "row 7", "not finite")
    assert not (tmp_path / "run").exists()
