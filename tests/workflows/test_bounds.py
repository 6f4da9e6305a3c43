from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from warp_unlearning.bounds.floor import reconstruction_floor
from warp_unlearning.cli.options import Options
from warp_unlearning.cli.subject import load_run
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
    source = load_run(trained)
    expected = reconstruction_floor(source.model, data=source.examples(source.known), seed=3, **FEW).as_json()
    assert found == to_json(expected) | {"model": model_digest(source.model), "data": "npz"}
    assert found["examples"] == len(source.known) == 108


def test_options_reach_the_call(trained: Path) -> None:
    found = ask(trained, law="uniform", seen="conjugated", parameters=("first",), batch=7, entropy=2.0, examples=50)
    assert (found["law"], found["seen"], found["parameters"], found["batch"]) == ("uniform", "conjugated", "first", 7)
    assert (found["entropy"], found["examples"]) == (2.0, 50)
    assert found["floor"] > 0
    names = [n for n, p in load_run(trained).model.named_parameters()][:2]
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
        ({"subject": Options(override=["modle.name=mlp"])}, "did you mean 'model'"),
    ],
)
def test_what_cannot_be_done_leaves_no_folder(
    trained: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        ask(trained, tmp_path / "run", **change)
    assert not (tmp_path / "run").exists()


def test_weight_files_and_networks_of_ones_own(trained: Path, blobs: Path, tmp_path: Path) -> None:
    data = ("validation=0.1",)
    found = ask(trained / "model.safetensors")
    assert found == ask(trained)
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes((trained / "model.safetensors").read_bytes())
    assert ask(copy, subject=Options(data=str(blobs), override=list(data))) == found

    file = tmp_path / "own.py"
    file.write_text(
        "from torch import nn\ndef build():\n    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))\n"
    )
    own, options = tmp_path / "own.safetensors", Options(data=str(blobs), model=f"{file}:build")
    network = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    save_weights(own, network)
    assert ask(own, tmp_path / "run", subject=options)["available"] == 5 * 6 + 5 + 5 * 3 + 3
    with torch.no_grad():
        network[0].bias.add_(1.0)
    save_weights(own, network)
    with pytest.raises(InputError, match=r"resolved\.model"):
        ask(own, tmp_path / "run", subject=options)


def test_a_model_whose_past_its_file_does_not_tell_is_fitted_to_all(trained: Path, blobs: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes((trained / "model.safetensors").read_bytes())
    assert ask(copy, subject=Options(data=str(blobs)))["examples"] == 120
