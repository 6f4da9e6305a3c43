from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from warp_unlearning.bounds.floor import reconstruction_floor
from warp_unlearning.cli.subject import load_run
from warp_unlearning.data.files import to_json
from warp_unlearning.models.weights import model_digest, save_weights

Warp = Callable[..., Any]
FEW = ("--coordinates", "40", "--draws", "50", "--examples", "200", "--threads", "1")


def refused(answer: Any, *parts: str) -> None:
    """One line on the error stream with all the parts, nothing on the other."""
    assert (answer.code, answer.out) == (2, "")
    (line,) = answer.err.splitlines()
    assert line.startswith("error: ")
    for part in parts:
        assert part in line


def test_a_user_sees_the_floors_what_they_assume_and_where_that_breaks(
    warp: Warp, trained: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    answer = warp("bounds", trained, "--spread", "0.2", "--spread", "0.5", "--out", out, *FEW)
    assert (answer.code, answer.err) == (0, "")
    found = json.loads((out / "results.json").read_text())["floor"]
    lines = answer.out.splitlines()
    assert lines[0].startswith(f"40 of {found['available']:,} gradient coordinates (all) of 200 examples, 3 components")
    assert f"at most {found['information']:.4g} nats about 64 numbers" in lines[1]
    rows = [line.split() for line in lines if line.strip().startswith(("0.2 ", "0.5 "))]
    for cells, row in zip(rows, found["rows"], strict=True):
        assert cells[0] == f"{row['spread']:g}"
        assert cells[1] == f"{np.exp(row['gain']['value']):.4g}"
        assert cells[4] == f"{np.exp(row['matched_gain']['value']):.4g}"
        assert cells[7:10] == [f"{row['energy'][key]:.3g}" for key in ("least", "median", "largest")]
    for words in ("not a guarantee", "relative only", "not secrecy of τ", "E[r²] = 1 cannot hold for every coordinate"):
        assert words in answer.out
    assert lines[-2:] == [f"the figure is {out / 'bounds.png'}", f"written to {out}"]
    files = {file.name: file for file in out.iterdir()}
    assert set(files) == {"config.yaml", "manifest.json", "results.json", "bounds.png"}
    assert {file.stat().st_mode & 0o777 for file in files.values()} == {0o600}
    assert files["bounds.png"].read_bytes().startswith(b"\x89PNG")
    again = ("bounds", trained, "--spread", "0.2", "--out", out, *FEW)
    assert warp(*again, "--spread", "0.5").out == answer.out
    for change in (("--spread", "0.6"), ("--spread", "0.5", "--seed", "1"), ("--spread", "0.5", "--require-energy")):
        refused(warp(*again, *change), "holds a run with another configuration")


def test_the_result_is_that_of_the_call_on_what_the_model_knows(warp: Warp, trained: Path) -> None:
    found = json.loads(warp("bounds", trained, "--seed", "3", "--json", *FEW, "--examples", "9999").out)
    source = load_run(trained)
    settings: dict[str, Any] = {"coordinates": 40, "draws": 50, "examples": 9999}
    expected = reconstruction_floor(source.model, data=source.examples(source.known), seed=3, **settings)
    assert found["floor"] == to_json(asdict(expected))
    assert found["floor"]["examples"] == len(source.known)
    assert (found["model"], found["data"]) == (model_digest(source.model), "digits")


def test_a_weight_file_of_ones_own_network(warp: Warp, points: Path, tmp_path: Path) -> None:
    file, own = tmp_path / "own.py", tmp_path / "own.safetensors"
    file.write_text(
        "from torch import nn\ndef build():\n    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))\n"
    )
    network = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    save_weights(own, network)
    asked = ("bounds", own, "--data", points, "--model", f"{file}:build", "--out", tmp_path / "run", "--json", *FEW)
    assert json.loads(warp(*asked).ok().out)["floor"]["available"] == 4 * 5 + 5 + 5 * 3 + 3
    with torch.no_grad():
        network[0].bias.add_(1.0)
    save_weights(own, network)
    refused(warp(*asked), "resolved.model")


def test_json_alone_is_on_the_output_and_nothing_is_written(warp: Warp, trained: Path, tmp_path: Path) -> None:
    asked = ("--law", "uniform", "--seen", "conjugated", "--parameters", "fc.weight", "--batch", "9", "--entropy", "4")
    answer = warp("bounds", trained, "--spread", "0.3", *asked, "--data", "digits", "--json", *FEW)
    assert (answer.code, answer.err) == (0, "")
    found = json.loads(answer.out)
    assert (found["schema_version"], found["kind"]) == (2, "bounds")
    found = found["floor"]
    assert (found["law"], found["batch"]) == ("uniform", 9)
    assert (found["seen"], found["parameters"], found["entropy"]) == ("conjugated", "fc.weight", 4.0)
    assert [row["spread"] for row in found["rows"]] == [0.3]
    again = warp("bounds", trained, "--spread", "0.3", *asked, "--json", *FEW)
    assert again.out == answer.out
    assert not list(tmp_path.iterdir())


def test_four_spreads_by_default(warp: Warp, trained: Path) -> None:
    answer = warp("bounds", trained, "--json", *FEW)
    assert [row["spread"] for row in json.loads(answer.out)["floor"]["rows"]] == [0.1, 0.2, 0.4, 0.8]


def test_the_promise_holds_where_the_energy_is_kept(warp: Warp, trained: Path) -> None:
    assert warp("bounds", trained, "--require-energy", "--parameters", "fc.weight", *FEW).code == 0
    refused(warp("bounds", trained, "--require-energy", *FEW), "E[r²] is ", "no gain is promised", "law='lognormal'")


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["--spread", "0"], ["spread is 0.0", "above 0"]),
        (["--spread", "-0.5"], ["spread is -0.5", "above 0"]),
        (["--spread", "1.5", "--law", "uniform"], ["zero or negative"]),
        (["--law", "normal"], ["law is 'normal'", "truncated_normal"]),
        (["--seen", "moved"], ["seen is 'moved'"]),
        (["--parameters", "fc.wieght"], ["no trainable parameter 'fc.wieght'", "did you mean 'fc.weight'?"]),
        (["--components", "150"], ["200 examples for 150 components"]),
        (["--entropy", "nan"], ["the entropy is nan"]),
        (["-o", "model.nmae=mlp"], ["model has no key 'nmae'"]),
        (["--scale", "2"], ["data differs from that of the run"]),
        (["--device", "gpu"], ["the device 'gpu' cannot be used"]),
    ],
)
def test_bad_requests_are_named_and_nothing_is_written(
    warp: Warp, trained: Path, tmp_path: Path, args: list[str], parts: list[str]
) -> None:
    refused(warp("bounds", trained, "--out", tmp_path / "run", *args, *FEW), *parts)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("args", "part"),
    [
        ([], "Missing argument"),
        (["m", "--draws", "1"], "Invalid value for '--draws'"),
        (["m", "--coordinates", "0"], "Invalid value for '--coordinates'"),
        (["m", "--spread", "wide"], "Invalid value for '--spread'"),
    ],
)
def test_bad_usage_is_code_two(warp: Warp, args: list[str], part: str) -> None:
    answer = warp("bounds", *args)
    assert answer.code == 2
    assert part in answer.err


def test_a_source_that_is_missing(warp: Warp, tmp_path: Path) -> None:
    refused(warp("bounds", tmp_path / "none", *FEW), f"nothing at {tmp_path / 'none'}")
