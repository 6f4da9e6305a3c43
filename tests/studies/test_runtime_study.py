"""Times of methods and defences: what is timed, what is counted, and the study from its plan to its table."""

from __future__ import annotations

import json
import pickle
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from torch import nn

from warp_unlearning.data.preprocess import load_data
from warp_unlearning.errors import DivergedError, InputError
from warp_unlearning.report.paper_tables import render
from warp_unlearning.runs.drain import Engine
from warp_unlearning.runs.jobs import finished
from warp_unlearning.runs.store import Store
from warp_unlearning.studies import runtime_study
from warp_unlearning.studies.cell_plan import Cell, plan_cells
from warp_unlearning.studies.runtime_study import (
    RuntimeWork,
    _settings,
    _summed,
    plan_runtime,
    runtime_results,
    timed_plan,
)
from warp_unlearning.studies.study import Asked, study_settings
from warp_unlearning.unlearning.driver import Driven

ASKED = Asked(
    methods=("ngp",),
    defenses=("none", "warp", "fastwarp"),
    method_options={"ngp": {"epochs": 1}},
    defense_options={name: {"batch_size": 64} for name in ("warp", "fastwarp")},
    epochs=1,
)


@dataclass(frozen=True, eq=False)
class Ticking(RuntimeWork):
    """Unlearns in so many seconds of a clock of its own, the first time in more, after as many to get ready."""

    clock: list[float] = field(default_factory=lambda: [0.0])
    turns: list[float] = field(default_factory=lambda: [40.0, 1.0, 2.0, 6.0])
    diverges: bool = False

    def _model(self, shadow: int, store: Store) -> nn.Module:
        return nn.Linear(1, 1)

    def _task(self, original: nn.Module, cell: Cell) -> Any:
        self.clock[0] += 100.0

    def _unlearn(self, model: Any, task: Any, arm: Any, cell: Cell) -> Generator[object, None, Driven]:
        yield None
        if self.diverges:
            raise DivergedError("nan", update=1, state=model.state_dict())
        self.clock[0] += self.turns.pop(0)
        return Driven([], [])


def test_from_plan_to_table(tmp_path: Path, serial: Engine) -> None:
    planned, store = plan_runtime(ASKED, "small", runs=2), Store(tmp_path / "store")
    assert planned.alone
    assert len(planned.results(store)["missing"]) == 3
    jobs = planned.to_do(store)
    assert [planned.told(job.key) for job in jobs] == [
        "original, shadow 0",
        "time of ngp",
        "time of ngp + warp",
        "time of ngp + fastwarp",
    ]
    outcome = serial(jobs, planned.work, store)
    assert outcome.complete, outcome.failed
    results = planned.results(store)
    json.dumps(results, allow_nan=False)
    rows = {row["defense"]: row for row in results["rows"]}
    assert (list(rows), results["missing"], results["diverged"]) == ([None, "warp", "fastwarp"], [], {})
    for row in rows.values():
        assert row["runs"] == len(row["each"]) == 2
        assert min(row["each"]) > 0
        low, high = stats.t.interval(0.95, 1, loc=row["seconds"]["value"], scale=stats.sem(row["each"]))
        assert (row["seconds"]["low"], row["seconds"]["high"]) == pytest.approx((low, high))
    assert rows[None]["teleports"] is None
    for defense in ("warp", "fastwarp"):
        made = rows[defense]["teleports"]
        assert made["count"] == 1
        assert 0 < made["seconds"]["value"] < rows[defense]["seconds"]["value"]
    shown = render(results).markdown
    assert "| NGP + FastWARP |" in shown
    assert "not measured" not in shown.split("- ")[0]
    # Nothing is trained again for results that are there.
    assert not any(job.key.kind == "original" for job in planned.to_do(store))


def test_the_original_is_that_of_the_other_studies() -> None:
    settings = study_settings("table1", "small", replace(ASKED, shadows=4, forget_sets=2))
    other = plan_cells(settings, load_data("digits"), defense_seed=0)
    plan = timed_plan(_settings(ASKED, "small"), runs=2, defense_seed=0)
    assert plan.key(Cell("original", 0)) == other.key(Cell("original", 0))
    assert (plan.forgotten(0, 0) == other.forgotten(0, 0)).all()
    alone = next(arm for arm in settings.arms if arm.name == "ngp")
    assert dict(plan.settings.arms[0].method_settings) == dict(alone.method_settings)


def test_the_first_run_and_what_comes_before_a_run_are_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, store = timed_plan(_settings(ASKED, "small"), runs=3, defense_seed=0), Store(tmp_path)
    work = Ticking(plan, 0, runs=3)
    monkeypatch.setattr(runtime_study, "perf_counter", lambda: work.clock[0])
    store.write(plan.jobs[1].key, finished(work(plan.jobs[1], store)))
    (row,) = runtime_results(plan, store)["rows"]
    assert (row["each"], row["seconds"]["value"], work.turns) == ([1.0, 2.0, 6.0], 3.0, [])


def test_teleports_are_summed_over_a_run_and_the_first_is_told_apart() -> None:
    runs = [{"seconds": [9.0, 1.0, 2.0], "taken_back": 1}, {"seconds": [5.0, 3.0, 2.0], "taken_back": 0}]
    found = _summed(runs)
    assert found is not None
    assert (found["count"], found["taken_back"], found["seconds"]["value"], found["later_median"]) == (3, 0.5, 11, 2)
    assert found["each"] == [[9.0, 1.0, 2.0], [5.0, 3.0, 2.0]]
    assert _summed([{"seconds": [], "taken_back": 0}]) is None


def test_what_diverges_is_said_and_has_no_row(tmp_path: Path) -> None:
    plan, store = timed_plan(_settings(ASKED, "small"), runs=2, defense_seed=0), Store(tmp_path)
    work = Ticking(plan, 0, runs=2, diverges=True)
    store.write(plan.jobs[1].key, finished(work(plan.jobs[1], store)))
    results = runtime_results(plan, store)
    assert (results["rows"], list(results["diverged"])) == ([], ["ngp"])
    assert results["missing"] == ["ngp + warp", "ngp + fastwarp"]


def test_keys_hold_what_decides_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def keys(asked: Asked = ASKED, *, runs: int = 3, defense_seed: int = 0) -> list[str]:
        plan = timed_plan(_settings(asked, "small"), runs=runs, defense_seed=defense_seed)
        return [job.key.digest for job in plan.jobs if job.key.kind == "runtime"]

    usual = keys()
    assert usual == keys()
    assert not set(usual) & set(keys(runs=4))
    assert not set(usual) & set(keys(replace(ASKED, seed=1)))
    assert not set(usual) & set(keys(replace(ASKED, epochs=2)))
    assert not set(usual) & set(keys(replace(ASKED, method_options={"ngp": {"epochs": 3}})))
    assert [a == b for a, b in zip(usual, keys(defense_seed=1), strict=True)] == [True, False, False]
    slower = keys(replace(ASKED, defense_options={**ASKED.defense_options, "warp": {"energy": 0.9}}))
    assert [a == b for a, b in zip(usual, slower, strict=True)] == [True, False, True]
    monkeypatch.setattr(runtime_study, "machine", lambda device: "another")
    assert not set(usual) & set(keys())


def test_work_can_be_sent_and_one_run_is_too_few() -> None:
    work = plan_runtime(ASKED, "small", runs=4).work
    sent = pickle.loads(pickle.dumps(work))
    assert (sent.runs, sent.defense_seed, len(sent.plan.jobs)) == (4, 0, 4)
    with pytest.raises(InputError, match="at least 2"):
        plan_runtime(ASKED, "small", runs=1)
