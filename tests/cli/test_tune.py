from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("optuna")
pytestmark = pytest.mark.long
Warp = Callable[..., Any]
FILE = """
model: {name: mlp, options: {hidden: [8]}}
training: {epochs: 5}
population: 2
device: cpu
"""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tune") / "tune.yaml"
    file.write_text(FILE)
    return file


@pytest.fixture(scope="module")
def tuned(warp: Warp, settings: Path) -> tuple[Path, Any]:
    out = settings.parent / "run"
    np.save(settings.parent / "audited.npy", np.arange(100))
    given = ("--audited", settings.parent / "audited.npy", "--seed", "100", "--trials", "2", "--jobs", "1")
    return out, warp("tune", settings, "--out", out, "--method", "ngp", "--defense", "conjugate", *given)


def test_a_user_sees_what_is_done_and_what_was_chosen(tuned: tuple[Path, Any]) -> None:
    out, answer = tuned
    assert answer.code == 0, answer.err
    lines = answer.err.splitlines()
    assert lines[0] == "planned: 2 arms of 2 trials, each on 2 forget sets of shadows from 1000 on; 1 at once"
    assert "originals and retrained models" in lines
    assert "trials up to 2 of 2 of each arm" in lines
    assert "tuning-trial: 8 of 8" in lines
    rows = [line.split() for line in answer.out.splitlines()]
    assert [row[0] for row in rows if row and row[0] in ("ngp", "retrained")] == ["ngp", "ngp", "retrained"]
    assert "chosen with an oracle" in answer.out
    assert "Neither the 100 points that are audited" in answer.out
    assert f"chosen settings: {out / 'recipes.yaml'}" in answer.out
    assert (out / "frontier.png").is_file()


def test_the_same_command_again_does_nothing_and_json_is_the_results(
    warp: Warp, tuned: tuple[Path, Any], settings: Path
) -> None:
    out = tuned[0]
    given = ("--audited", settings.parent / "audited.npy", "--seed", "100", "--trials", "2", "--json")
    answer = warp("tune", settings, "--out", out, "--method", "ngp", "--defense", "conjugate", *given)
    assert answer.code == 0
    assert json.loads(answer.out) == json.loads((out / "results.json").read_text())


def test_other_settings_in_the_same_folder_are_refused_by_key(
    warp: Warp, tuned: tuple[Path, Any], settings: Path
) -> None:
    answer = warp("tune", settings, "--out", tuned[0], "--seed", "101")
    assert answer.code == 2
    assert "seed: 100 there, 101 now" in answer.err


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["--method", "ngq"], ["unknown method 'ngq'", "did you mean 'ngp'?"]),
        (["--trials", "0"], ["trials is 0", "greater than or equal to 1"]),
        (["--defense", "wrap"], ["unknown defence 'wrap'"]),
        (["--audited", "/none.npy"], ["there is no file /none.npy; give row numbers"]),
        (["-o", "trails=3"], ["has no key 'trails'", "did you mean 'trials'?"]),
    ],
)
def test_bad_input_is_named_and_nothing_is_written(
    warp: Warp, settings: Path, tmp_path: Path, args: list[str], parts: list[str]
) -> None:
    answer = warp("tune", settings, "--out", tmp_path / "run", *args)
    assert (answer.code, answer.out) == (2, "")
    (line,) = answer.err.splitlines()
    assert all(part in line for part in parts)
    assert not (tmp_path / "run").exists()


def test_without_optuna_the_extra_is_named(warp: Warp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    answer = warp("tune", "--out", tmp_path / "run")
    assert answer.code == 2
    assert "pip install 'warp-unlearning[tune]'" in answer.err
    assert not (tmp_path / "run").exists()


def test_processes_are_for_a_gpu(warp: Warp, settings: Path, tmp_path: Path) -> None:
    answer = warp("tune", settings, "--out", tmp_path / "run", "--processes", "2")
    assert answer.code == 2
    assert "2 processes that share a GPU, and the device is cpu" in answer.err
