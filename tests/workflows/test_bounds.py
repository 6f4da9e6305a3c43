from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from warp_unlearning.workflows.source import load_source

from warp_unlearning.bounds.reconstruction_floor import reconstruction_floor
from warp_unlearning.data.files import to_json
from warp_unlearning.errors import InputError
from warp_unlearning.models.weights import model_digest, save_weights
from warp_unlearning.runs.directory import open_run
from warp_unlearning.workflows import bounds as module
from warp_unlearning.workflows.bounds import BoundsRequest, bounds_run

FEW: dict[str, Any] = {"coordinates": 40, "draws": 60, "spread": (0.2, 0.5), "components": 2}


def ask(source: Path, out: Path | None = None, **more: Any) -> dict[str, Any]:
    return bounds_run(BoundsRequest(source, out, **(FEW | more)))


def test_the_result_is_that_of_the_call_on_what_the_model_knows(trained: Path) -> None:
    found = ask(trained, seed=3)
    source = load_source(trained)
    assert source.known is not None
    data = source.data.train.select(torch.from_numpy(source.known))
    expected = reconstruction_floor(source.model, data=data, seed=3, **FEW).as_json()
    assert found == to_json(expected) | {"model": model_digest(source.model), "data": "npz"}
    assert found["examples"] == len(source.known) < 120


def test_options_reach_the_call(trained: Path) -> None:
    found = ask(trained, law="uniform", seen="conjugated", parameters=("first",), batch=7, entropy=2.0, examples=50)
    assert (found["law"], found["seen"], found["parameters"], found["batch"]) == ("uniform", "conjugated", "first", 7)
    assert (found["entropy"], found["examples"]) == (2.0, 50)
    assert found["floor"] > 0
    names = [n for n, p in load_source(trained).model.named_parameters()][:2]
    assert ask(trained, parameters=tuple(names))["parameters"] == ", ".join(names)


def test_a_run_is_a_folder_with_a_figure_and_is_not_made_twice(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ask(trained, tmp_path / "run")
    files = {p.name: p for p in (tmp_path / "run").iterdir()}
    assert set(files) == {"config.yaml", "manifest.json", "bounds.json", "bounds.png"}
    assert {p.stat().st_mode & 0o777 for p in files.values()} == {0o600}
    assert json.loads(files["bounds.json"].read_text()) == found
    assert files["bounds.png"].read_bytes().startswith(b"\x89PNG")
    assert open_run(tmp_path / "run").kind == "bounds"
    monkeypatch.setattr(module, "reconstruction_floor", None)
    assert ask(trained, tmp_path / "run") == found
    for change in ({"seed": 1}, {"spread": (0.2,)}, {"law": "uniform"}, {"draws": 61}, {"require_energy": True}):
        with pytest.raises(InputError, match="holds a run with another configuration"):
            ask(trained, tmp_path / "run", **change)


def test_a_run_that_was_stopped_is_made_whole(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    plot = module.plot_floor
    monkeypatch.setattr(module, "plot_floor", stop)
    with pytest.raises(KeyboardInterrupt):
        ask(trained, tmp_path / "run")
    monkeypatch.setattr(module, "plot_floor", plot)
    assert ask(trained, tmp_path / "run") == ask(trained)
    open_run(tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"spread": (0.0,)}, r"spread is 0\.0; give a number above 0"),
        ({"law": "normal"}, "law is 'normal'"),
        ({"require_energy": True}, r"E\[r²\] is .* no gain is promised"),
        ({"components": 200}, "108 examples for 200 components"),
        ({"overrides": ("modle.name=mlp",)}, "did you mean 'model'"),
    ],
)
def test_what_cannot_be_done_leaves_no_folder(
    trained: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        ask(trained, tmp_path / "run", **change)
    assert not (tmp_path / "run").exists()


def test_weight_files_and_networks_of_ones_own(trained: Path, tmp_path: Path) -> None:
    config = load_source(trained).config
    data = ("data.name=npz", f'data.path="{config.data.path}"')
    found = ask(trained / "model.safetensors", overrides=(*data, "model.name=mlp"))
    assert found == ask(trained)

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))

    save_weights(tmp_path / "own.safetensors", build())
    request = BoundsRequest(tmp_path / "own.safetensors", overrides=(*data, "model.name=custom"), **FEW)
    assert bounds_run(request, builder=build)["available"] == 5 * 6 + 5 + 5 * 3 + 3

    other = build()
    save_weights(tmp_path / "own.safetensors", other)
    bounds_run(replace(request, out=tmp_path / "run"), builder=build)
    with torch.no_grad():
        other[0].bias.add_(1.0)  # type: ignore[index]
    save_weights(tmp_path / "own.safetensors", other)
    with pytest.raises(InputError, match=r"resolved\.model"):
        bounds_run(replace(request, out=tmp_path / "run"), builder=build)


def test_a_model_whose_past_its_file_does_not_tell_is_fitted_to_all(trained: Path) -> None:
    """All training examples but those held for validation."""
    source = load_source(trained)
    unknown = replace(source, known=None)
    original = module.load_source
    try:
        module.load_source = lambda *a, **k: unknown  # type: ignore[assignment]
        found = ask(trained)
    finally:
        module.load_source = original
    assert found["examples"] == 120 - len(source.validation)
    assert np.isfinite(found["information"])
