from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from warp_unlearning.cli.options import Options
from warp_unlearning.cli.subject import load_run
from warp_unlearning.cli.unlearn import unlearn_run
from warp_unlearning.config import Config, resolve
from warp_unlearning.runs.directory import open_run
from warp_unlearning.workflows import demo as module
from warp_unlearning.workflows.demo import DemoResult, run_demo
from warp_unlearning.workflows.demo_defenses import SHOWN


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[DemoResult, Path, list[str]]:
    """The demo with a small network, little training and unlearning, two methods and no worker processes."""
    folder = tmp_path_factory.mktemp("demo")
    said: list[str] = []

    def short(*, overrides: list[str]) -> Config:
        return resolve(overrides=[*overrides, "training.epochs=2", "model.options.width=4"])

    def one_epoch(source: Path, out: Path, *, options: Options, **given: Any) -> Any:
        more = [] if given["method__name"] == "retrain" else ["method.options.epochs=1"]
        return unlearn_run(source, out, options=replace(options, override=more), **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "resolve", short)
        patch.setattr(module, "unlearn_run", one_epoch)
        patch.setattr(module, "SMALL_DATA", {"ngp": {}, "bad_teacher": {}})
        patch.setattr(module, "run_all", lambda work, jobs: [work(job) for job in jobs])
        patch.setattr(module, "available_cores", lambda: 1)
        result = run_demo(folder, seed=5, say=said.append)
    return result, folder, said


def test_there_is_a_row_a_model_in_the_order_of_reading(demo: tuple[DemoResult, Path, list[str]]) -> None:
    result, folder, _ = demo
    assert list(result.rows) == ["original", "retrained", result.floor, "ngp", "bad_teacher"]
    defended = {f"{method} + {defense}" for method in ("ngp", "bad_teacher") for defense in SHOWN}
    alone = {"original", "retrain", "retrained again", "ngp", "bad_teacher"}
    assert {p.name for p in folder.iterdir()} == alone | defended
    for run in folder.iterdir():
        open_run(run)


def test_the_forgotten_class_is_in_no_other_set(demo: tuple[DemoResult, Path, list[str]]) -> None:
    result, _, _ = demo
    assert result.label == 3
    # 1,400 digits, a tenth of them held back; the test set is counted without the digit.
    assert result.counts["forget"] + result.counts["retain"] == 1260
    assert 340 < result.counts["test"] < 370
    assert result.rows["retrained"].accuracy["forget"].value == 0
    assert result.rows["original"].accuracy["forget"].value > 0.5


def test_only_what_was_unlearned_has_a_time_and_only_the_reference_has_no_gap(
    demo: tuple[DemoResult, Path, list[str]],
) -> None:
    rows = demo[0].rows
    assert rows["original"].seconds is None
    assert all((rows[name].seconds or 0) > 0 for name in rows if name != "original")
    assert [name for name, row in rows.items() if row.gap is None] == ["retrained"]


def test_a_second_retrained_model_shows_what_chance_alone_makes(demo: tuple[DemoResult, Path, list[str]]) -> None:
    result, _, _ = demo
    again = result.rows[result.floor]
    assert again.accuracy["forget"].value == 0
    assert again.gap is not None
    assert 0 < again.gap.value < 1


def test_the_seed_reaches_every_run(demo: tuple[DemoResult, Path, list[str]]) -> None:
    for run in demo[1].iterdir():
        assert open_run(run).config()["seed"] == (6 if run.name == "retrained again" else 5)
        assert open_run(run).config()["device"] == "cpu"


def test_each_method_has_a_row_alone_and_with_each_defence(demo: tuple[DemoResult, Path, list[str]]) -> None:
    result, folder, _ = demo
    assert {method: list(rows) for method, rows in result.defended.items()} == {
        method: ["none", *SHOWN] for method in ("ngp", "bad_teacher")
    }
    for method, rows in result.defended.items():
        names = {"none": method, **{defense: f"{method} + {defense}" for defense in SHOWN}}
        assert rows["none"].drift is None
        assert rows["none"].time_ratio == 1
        assert rows["none"].accuracy["retain"] == result.rows[method].accuracy["retain"].value
        for name, row in rows.items():
            cpu = [open_run(folder / run).read_json("results.json")["cpu_seconds"] for run in (names[name], method)]
            assert row.time_ratio == cpu[0] / cpu[1]
            if name != "none":
                assert row.drift is not None
                found = open_run(folder / f"{method} + {name}").read_json("results.json")
                about = found["teleports"]
                assert (found["defense"]["name"], row.drift) == (name, about["largest_drift"])
                assert row.energy == pytest.approx(about["energy_after"], rel=1e-5)
                assert result.original_energy == pytest.approx(about["energy_before"], rel=1e-5)
                assert about["experiment_only"]


def test_distances_are_over_weights_that_data_reaches(demo: tuple[DemoResult, Path, list[str]]) -> None:
    """Every weight of this network is reached by some image, except where a pixel is the same in all."""
    result, folder, _ = demo
    start = load_run(folder / "original").model.state_dict()
    model = load_run(folder / "ngp + warp").model
    ways = [(p.detach() - start[n]).double().flatten() for n, p in model.named_parameters()]
    norms = [start[n].double().flatten() for n, _ in model.named_parameters()]
    expected = float(torch.cat(ways).norm() / torch.cat(norms).norm())
    assert result.defended["ngp"]["warp"].distance == pytest.approx(expected, rel=0.02)
    assert result.defended["ngp"]["warp"].distance > result.defended["ngp"]["none"].distance


def test_it_says_what_it_does(demo: tuple[DemoResult, Path, list[str]]) -> None:
    text = " ".join(demo[2])
    assert "training" in text
    assert "the digit 3 by ngp, bad_teacher, alone and defended by warp, fastwarp, conjugate" in text
    assert "retraining" in text


def test_the_json_form(demo: tuple[DemoResult, Path, list[str]]) -> None:
    data: dict[str, Any] = json.loads(json.dumps(demo[0].as_json(), allow_nan=False))
    assert data["schema_version"] == 1
    names = {"schema_version", "experiment_only", "label", "counts", "rows", "defended", "original_energy"}
    assert set(data) == names
    assert data["rows"]["ngp"]["gap"]["low"] <= data["rows"]["ngp"]["gap"]["value"]


def test_jobs_run_on_all_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The unlearnings are handed to `run_all`, which shares the cores, in one go."""
    handed: list[list[str]] = []

    class Enough(Exception):
        pass

    def record(work: Any, jobs: Any) -> None:
        handed.append([name for name, _ in jobs])
        raise Enough

    monkeypatch.setattr(module, "run_all", record)
    monkeypatch.setattr(module, "train_run", lambda config, out: {"accuracy": {"test": 1.0}})
    with pytest.raises(Enough):
        run_demo(tmp_path, seed=0, say=lambda text: None)
    names = ["retrain", "retrained again", "ngp", "scrub", "salun", "pgu", "bad_teacher", "srf_on"]
    names += [f"{method} + {defense}" for defense in SHOWN for method in names[2:]]
    assert handed == [names]
