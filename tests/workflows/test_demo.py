from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from warp_unlearning.config.resolve import resolve
from warp_unlearning.config.schema import Config
from warp_unlearning.runs.directory import open_run
from warp_unlearning.workflows import demo as module
from warp_unlearning.workflows.demo import DemoResult, run_demo


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[DemoResult, Path, list[str]]:
    """The demo with a small network, little training, two methods and no worker processes."""
    folder = tmp_path_factory.mktemp("demo")
    said: list[str] = []

    def short(*, overrides: list[str]) -> Config:
        return resolve(overrides=[*overrides, "training.epochs=2", "model.options.width=4"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "resolve", short)
        patch.setattr(module, "SMALL_DATA", {"ngp": {}, "salun": {}})
        patch.setattr(module, "run_all", lambda work, jobs: [work(job) for job in jobs])
        patch.setattr(module, "available_cores", lambda: 1)
        result = run_demo(folder, seed=5, say=said.append)
    return result, folder, said


def test_there_is_a_row_a_model_in_the_order_of_reading(demo: tuple[DemoResult, Path, list[str]]) -> None:
    result, folder, _ = demo
    assert list(result.rows) == ["original", "retrained", result.floor, "ngp", "salun"]
    assert {p.name for p in folder.iterdir()} == {"original", "retrain", "retrained again", "ngp", "salun"}
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


def test_it_says_what_it_does(demo: tuple[DemoResult, Path, list[str]]) -> None:
    text = " ".join(demo[2])
    assert "training" in text
    assert "the digit 3 by ngp, salun" in text
    assert "retraining" in text


def test_the_json_form(demo: tuple[DemoResult, Path, list[str]]) -> None:
    data: dict[str, Any] = json.loads(json.dumps(demo[0].as_json(), allow_nan=False))
    assert data["schema_version"] == 1
    assert set(data) == {"schema_version", "label", "counts", "rows"}
    assert data["rows"]["ngp"]["gap"]["low"] <= data["rows"]["ngp"]["gap"]["value"]


def test_jobs_run_on_all_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The unlearnings are handed to `run_all`, which shares the cores, in one go."""
    handed: list[tuple[Any, list[Path]]] = []

    class Enough(Exception):
        pass

    def record(work: Any, jobs: Any) -> None:
        handed.append((work, [job.out for job in jobs]))
        raise Enough

    monkeypatch.setattr(module, "run_all", record)
    monkeypatch.setattr(module, "train_run", lambda request: {"accuracy": {"test": 1.0}})
    with pytest.raises(Enough):
        run_demo(tmp_path, seed=0, say=lambda text: None)
    names = ["retrain", "ngp", "scrub", "salun", "pgu", "bad_teacher", "srf_on", "retrained again"]
    assert handed[0][1] == [tmp_path / name for name in names]
