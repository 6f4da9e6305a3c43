from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from warp_unlearning.workflows.evaluate import EvaluateRequest, evaluate_run
from warp_unlearning.workflows.source import load_source
from warp_unlearning.workflows.unlearn import UnlearnRequest, unlearn_run

from warp_unlearning.data.split_folder import load_split
from warp_unlearning.errors import DataError, InputError
from warp_unlearning.models.weights import read_weights
from warp_unlearning.unlearning.judge import compare

Train = Callable[..., Path]


@pytest.fixture(scope="module")
def runs(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    found = {"original": trained}
    for method, name in (("ngp", "unlearned"), ("retrain", "retrained")):
        found[name] = folder / name
        unlearn_run(UnlearnRequest(trained, found[name], overrides=("forget.label=1", f"method.name={method}")))
    return found


def test_the_sets_are_those_of_the_unlearned_runs_split(runs: dict[str, Path]) -> None:
    found = evaluate_run(EvaluateRequest(**runs))
    source = load_source(runs["original"])
    split = load_split(runs["unlearned"] / "split")
    parts = {k: source.data.train.select(torch.from_numpy(getattr(split, k))) for k in ("forget", "retain")}
    models = {name: load_source(path).model for name, path in runs.items()}
    assert found == compare(**models, **parts, test=source.data.test)
    assert found.counts == {"forget": 36, "retain": 72, "test": 30}
    assert set(found.gaps) == {"original", "unlearned"}


def test_without_a_retrained_model_there_are_no_gaps(runs: dict[str, Path]) -> None:
    found = evaluate_run(EvaluateRequest(runs["original"], runs["unlearned"]))
    assert found.gaps == {}
    assert found.models == {
        name: scores for name, scores in evaluate_run(EvaluateRequest(**runs)).models.items() if name != "retrained"
    }


def test_weight_files_are_compared_on_a_given_split(
    runs: dict[str, Path], settings: tuple[str, ...], tmp_path: Path
) -> None:
    torch.save(read_weights(runs["unlearned"] / "model.safetensors").state, tmp_path / "u.pt")
    request = EvaluateRequest(
        runs["original"] / "model.safetensors",
        tmp_path / "u.pt",
        runs["retrained"] / "model.safetensors",
        split=runs["unlearned"] / "split",
        overrides=settings,
    )
    assert evaluate_run(request) == evaluate_run(EvaluateRequest(**runs))
    with pytest.raises(InputError, match=r"there is no split .*u\.pt/split; give .* or --split FOLDER"):
        evaluate_run(EvaluateRequest(request.original, request.unlearned, overrides=settings))


def test_a_model_that_learned_what_is_forgotten_is_no_reference(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"learned from 36 of the 36 examples .*so it is no reference; retrain"):
        evaluate_run(EvaluateRequest(runs["original"], runs["unlearned"], runs["original"]))
    other = tmp_path / "other"
    unlearn_run(UnlearnRequest(runs["original"], other, overrides=("forget.label=2", "method.name=retrain")))
    with pytest.raises(InputError, match="learned from 36 of the 36"):
        evaluate_run(EvaluateRequest(runs["original"], runs["unlearned"], other))


def test_a_split_of_other_data_or_a_damaged_one_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "split"
    shutil.copytree(runs["unlearned"] / "split", folder)
    np.save(folder / "forget.npy", np.array([1, 2]))
    with pytest.raises(DataError, match="make the split again"):
        evaluate_run(EvaluateRequest(runs["original"], runs["unlearned"], split=folder))


def test_models_of_other_data_are_refused(runs: dict[str, Path], train: Train, blobs: Path, tmp_path: Path) -> None:
    arrays = dict(np.load(blobs))
    np.savez(tmp_path / "other.npz", **(arrays | {"x": arrays["x"] + 1}))
    other = train(tmp_path / "run", f'data.path="{tmp_path / "other.npz"}"')
    with pytest.raises(DataError, match=r"the unlearned model has other data \(npz, digest \w{12}\) than the original"):
        evaluate_run(EvaluateRequest(other, runs["unlearned"]))
