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
    command = ("teleport", trained, "--symmetry", symmetry, "--forget-class", "3", "--out", out)
    answer = warp(*command).ok()
    results = Teleport.model_validate_json((out / "results.json").read_text())
    assert answer.out.splitlines()[-2].startswith(f"holds: {results.what} ")
    before, after = load_run(trained), load_run(out)
    assert (results.original, results.teleported) == (model_digest(before.model), model_digest(after.model))
    assert results.original != results.teleported
    with torch.no_grad():
        x = before.examples(before.parts.unseen).take(torch.arange(64)).x
        change = (before.model.eval()(x) - after.model.eval()(x)).abs().max()
    assert change < (1e-4 if symmetry != "null_space" else torch.inf)
    assert len(after.known) == len(before.known)
    assert warp(*command, "--json").ok().out == (out / "results.json").read_text()


def test_a_function_that_is_not_kept_is_exit_one(warp: Warp, trained: Path, tmp_path: Path) -> None:
    more = ("--forget-class", "3", "-o", "step_size=3", "-o", "energy=0.5", "--tolerance", "0")
    answer = warp("teleport", trained, "--symmetry", "null_space", *more, "--out", tmp_path / "out")
    assert answer.code == 1
    assert answer.out.splitlines()[-2].startswith("does not hold: change of the mean loss of retained rows")


def test_options_of_symmetries_and_settings_share_one_flag(warp: Warp, trained: Path, tmp_path: Path) -> None:
    both = ("--symmetry", "change_of_basis", "--symmetry", "permutation", "--defense-seed", "3")
    more = ("-o", "spread=0.1", "-o", "device=cpu", "-o", "change_of_basis.law=lognormal")
    answer = warp("teleport", trained, *both, *more, "--out", tmp_path / "out").ok()
    assert "change_of_basis then permutation moved" in answer.out
    assert "experiment only: whoever knows the seed can undo this move" in answer.out
    config = (tmp_path / "out" / "config.yaml").read_text()
    assert "spread: 0.1" in config
    assert "law: lognormal" in config


def test_what_earlier_requests_forgot_is_what_the_move_is_for(warp: Warp, unlearned: Path, tmp_path: Path) -> None:
    answer = warp("teleport", unlearned, "--symmetry", "null_space", "--out", tmp_path / "out").ok()
    assert "note: the rows to forget are the 50 that this model was asked to forget" in answer.out
    assert json.loads((tmp_path / "out" / "results.json").read_text())["certificate"]["energy_before"] is not None


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("null_spaces",), "did you mean 'null_space'"),
        (("permutation", "-o", "spred=1"), "there is no option 'spred'"),
        (("null_space", "--tolerance", "-1"), "the tolerance is -1"),
        (("null_space", "--forget-class", "12"), "no class is called '12'"),
        (("permutation", "--dtype", "float64"), "the weights are float32, and rounding a moved network to that"),
    ],
)
def test_what_cannot_be_moved_leaves_nothing(
    warp: Warp, trained: Path, tmp_path: Path, more: tuple[str, ...], message: str
) -> None:
    warp("teleport", trained, "--symmetry", *more, "--out", tmp_path / "out").refused(message)
    assert not (tmp_path / "out").exists()
