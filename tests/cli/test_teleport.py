"""`warp teleport`: the function is kept, certified, and read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from warp_unlearning.cli.subject import load_run
from warp_unlearning.models.weights import model_digest
from warp_unlearning.report.schema import Teleport

Warp = Callable[..., Any]


@pytest.mark.parametrize("symmetry", ["null_space", "change_of_basis", "permutation"])
def test_the_function_is_kept_and_certified(warp: Warp, trained: Path, tmp_path: Path, symmetry: str) -> None:
    out = tmp_path / "moved"
    answer = warp("teleport", trained, "--symmetry", symmetry, "--forget-class", "3", "--out", out)
    assert answer.code == 0, answer.err
    results = Teleport.model_validate_json((out / "results.json").read_text())
    assert answer.out.splitlines()[-2].startswith(f"holds: {results.what} ")
    before, after = load_run(trained), load_run(out)
    assert (results.original, results.teleported) == (model_digest(before.model), model_digest(after.model))
    assert results.original != results.teleported
    test = before.test()
    assert test is not None
    with torch.no_grad():
        x = test.take(torch.arange(64)).x
        change = (before.model.eval()(x) - after.model.eval()(x)).abs().max()
    if symmetry != "null_space":
        assert change < 1e-4
    assert len(after.known) == len(before.known)
    again = warp("teleport", trained, "--symmetry", symmetry, "--forget-class", "3", "--out", out, "--json")
    assert (again.code, again.out) == (0, (out / "results.json").read_text())


def test_a_function_that_is_not_kept_is_exit_one(warp: Warp, trained: Path, tmp_path: Path) -> None:
    more = ("--forget-class", "3", "-o", "step_size=3", "-o", "energy=0.5", "--tolerance", "0")
    answer = warp("teleport", trained, "--symmetry", "null_space", *more, "--out", tmp_path / "out")
    assert answer.code == 1
    assert answer.out.splitlines()[-2].startswith("does not hold: change of the mean loss of retained rows")


def test_options_of_symmetries_and_settings_share_one_flag(warp: Warp, trained: Path, tmp_path: Path) -> None:
    both = ("--symmetry", "change_of_basis", "--symmetry", "permutation", "--defense-seed", "3")
    answer = warp("teleport", trained, *both, "-o", "spread=0.1", "-o", "device=cpu", "--out", tmp_path / "out")
    assert answer.code == 0
    assert "change_of_basis then permutation moved" in answer.out
    assert "experiment only: whoever knows the seed can undo this move" in answer.out
    config = (tmp_path / "out" / "config.yaml").read_text()
    assert "spread: 0.1" in config


def test_what_earlier_requests_forgot_is_what_the_move_is_for(warp: Warp, unlearned: Path, tmp_path: Path) -> None:
    answer = warp("teleport", unlearned, "--symmetry", "null_space", "--out", tmp_path / "out")
    assert answer.code == 0, answer.err
    assert "note: the rows to forget are the 50 that this model was asked to forget" in answer.out
    assert json.loads((tmp_path / "out" / "results.json").read_text())["certificate"]["energy_before"] is not None


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--symmetry", "null_spaces"), "did you mean 'null_space'"),
        (("--symmetry", "permutation", "-o", "spred=1"), "there is no option 'spred'"),
        (("--symmetry", "null_space", "--tolerance", "-1"), "the tolerance is -1"),
        (("--symmetry", "null_space", "--forget-class", "12"), "no class is called '12'"),
    ],
)
def test_what_cannot_be_moved_leaves_nothing(
    warp: Warp, trained: Path, tmp_path: Path, more: tuple[str, ...], message: str
) -> None:
    answer = warp("teleport", trained, *more, "--out", tmp_path / "out")
    assert answer.code == 2
    assert message in answer.err
    assert not (tmp_path / "out").exists()


def test_a_certificate_is_of_the_weights_that_are_written(warp: Warp, trained: Path, tmp_path: Path) -> None:
    answer = warp("teleport", trained, "--symmetry", "permutation", "--dtype", "float64", "--out", tmp_path / "out")
    assert answer.code == 2
    assert "the weights are float32, and rounding a moved network to that changes its function" in answer.err
