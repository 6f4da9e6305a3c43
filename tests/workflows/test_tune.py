"""A tuning as a run: its trials against models unlearned by hand, its files, and what it does when it is stopped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from filelock import FileLock

from warp_unlearning.config import ShadowConfig, TuneConfig, read_recipes, resolve_as
from warp_unlearning.data.preprocess import load_data
from warp_unlearning.defense.registry import make_defense
from warp_unlearning.errors import DataError, InputError
from warp_unlearning.gpu.lanes import Lane
from warp_unlearning.methods.registry import make_method
from warp_unlearning.randomness import Streams
from warp_unlearning.runs.directory import open_run
from warp_unlearning.runs.drain import Outcome, Watch
from warp_unlearning.runs.jobs import Job, Work, finished
from warp_unlearning.runs.local import Lanes, run_here
from warp_unlearning.runs.store import Store
from warp_unlearning.studies.shadow_work import new_network
from warp_unlearning.studies.stored import weights_of
from warp_unlearning.studies.tuning_objectives import membership_accuracy
from warp_unlearning.studies.tuning_plan import RETRAIN, TRAIN, TuningTask, Unit
from warp_unlearning.training.scoring import accuracy, losses
from warp_unlearning.training.training import Recipe, Training, run_training
from warp_unlearning.unlearning.driver import unlearn
from warp_unlearning.workflows.audit_shadow import shadow_settings
from warp_unlearning.workflows.tune import (
    FRONTIER,
    MATCHED_RECIPES,
    RECIPES,
    TABLE,
    TRIALS,
    PreparedTuning,
    TrialError,
    TuneRequest,
    carry_out_tuning,
    prepare_tuning,
)

pytest.importorskip("optuna")


@dataclass
class Serial:
    """An engine without processes, which stops after so many jobs, and says which it did."""

    limit: int = 10**9
    done: list[str] = field(default_factory=list)

    def __call__(
        self, jobs: Sequence[Job], work: Work, store: Store, *, watch: Watch | None = None, until: float | None = None
    ) -> Outcome:
        done = []
        for job in jobs:
            if not store.has(job.key):
                if len(self.done) == self.limit:
                    raise KeyboardInterrupt
                store.write(job.key, finished(work(job, store)), seconds=0.5)
                self.done.append(job.key.kind)
                done.append(job.key)
        return Outcome(tuple(done), (), {}, ())


def config(blobs: Path, **changed: Any) -> TuneConfig:
    base = {
        "data": {"name": "npz", "path": str(blobs)},
        "model": {"name": "mlp", "options": {"hidden": [8]}},
        "training": {"epochs": 10, "batch_size": 16},
        "methods": ["ngp"],
        "method_options": {"ngp": {"batch_size": 16}},
        "defenses": ["warp"],
        "trials": 3,
        "population": 2,
        "fraction": 0.2,
        "device": "cpu",
        "seed": 5,
    }
    return resolve_as(TuneConfig, base={**base, **changed})


@dataclass(frozen=True)
class Tuned:
    prepared: PreparedTuning
    results: dict[str, Any]
    done: list[str]

    @property
    def path(self) -> Path:
        return self.prepared.run.path


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("audited") / "audited.npy"
    np.save(file, np.arange(0, 20))
    return file


@pytest.fixture(scope="module")
def tuned(blobs: Path, audited: Path, tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("tuned") / "run"
    prepared = prepare_tuning(TuneRequest(config(blobs, audited=str(audited)), out))
    engine = Serial()
    results = carry_out_tuning(prepared, engine)
    torch.set_num_threads(before)
    return Tuned(prepared, results, engine.done)


def test_base_and_defended_have_the_same_number_of_trials(tuned: Tuned) -> None:
    assert [arm["name"] for arm in tuned.results["arms"]] == ["ngp", "ngp + warp"]
    assert [len(arm["trials"]) for arm in tuned.results["arms"]] == [3, 3]
    assert [arm["complete"] + arm["failed"] for arm in tuned.results["arms"]] == [3, 3]


def test_originals_and_retrained_models_are_made_once(tuned: Tuned) -> None:
    counts = {kind: tuned.done.count(kind) for kind in set(tuned.done)}
    # Two arms with three trials each, on a forget set of each of two shadows.
    assert counts == {"tuning-train": 2, "tuning-retrain": 2, "tuning-trial": 12}


def test_shadows_train_on_their_half_and_retrained_models_on_what_is_retained(tuned: Tuned) -> None:
    plan, store = tuned.prepared.plan, tuned.prepared.store
    data, shadow = load_data(**plan.settings.data), plan.design[1]
    for kind, index, streams in (
        (TRAIN, shadow.trained, Streams(5, "shadow", 1001)),
        (RETRAIN, np.setdiff1d(shadow.trained, shadow.forget[0]), Streams(5, "retrained", 1001, 0)),
    ):
        model = new_network(plan.settings.models, data, streams)
        points = data.train.select(torch.from_numpy(index))
        training = Training(model, points, recipe=Recipe(epochs=10, batch_size=16), streams=streams, fill=data.fill)
        run_training(training)
        kept = weights_of(store.read(plan.key(TuningTask(kind, Unit(1, 0)))).read("model.safetensors"))
        assert all(torch.allclose(value, kept[name], atol=1e-5) for name, value in model.state_dict().items())


@pytest.mark.filterwarnings("ignore::warp_unlearning.errors.WarpWarning")
def test_objectives_are_those_of_models_unlearned_by_hand(tuned: Tuned) -> None:
    plan, store = tuned.prepared.plan, tuned.prepared.store
    data = load_data(**plan.settings.data)

    def model(task: TuningTask) -> torch.nn.Module:
        made = new_network(plan.settings.models, data, Streams(0))
        made.load_state_dict(weights_of(store.read(plan.key(task)).read("model.safetensors")))
        return made.eval()

    for arm in tuned.results["arms"]:
        trial = arm["trials"][1]
        found, rates, advantages = [], [], []
        for place, shadow in enumerate(plan.design):
            for part in (0,):
                parts = {
                    name: data.train.select(torch.from_numpy(index))
                    for name, index in (
                        ("retain", np.setdiff1d(shadow.retained(part), np.arange(20))),
                        ("forget", shadow.forget[part]),
                        ("validation", shadow.validation),
                        ("held_out", shadow.held_out),
                    )
                }
                retrained = model(TuningTask(RETRAIN, Unit(place, part)))
                streams = Streams(5, "unlearn", 1000 + place)
                defense = arm["defense"] and make_defense(arm["defense"], **trial["defense_settings"])
                result = unlearn(
                    model(TuningTask(TRAIN, Unit(place, 0))),
                    forget=parts["forget"],
                    retain=data.train.select(torch.from_numpy(shadow.retained(part))),
                    validation=parts["validation"],
                    method=make_method("ngp", **trial["method_settings"]),
                    defense=defense,
                    seed=streams.number(part),
                    defense_seed=streams.number("defense", part),
                )
                gaps = [
                    abs(accuracy(result.model, parts[name]) - accuracy(retrained, parts[name])) / 3
                    for name in ("retain", "forget", "validation")
                ]
                seed = Streams(5, "tuning").number("membership", 1000 + place, part)
                lost = {name: losses(result.model, parts[name]).double().numpy() for name in parts}
                mia = membership_accuracy(lost["forget"], lost["validation"], seed=seed)
                held = membership_accuracy(lost["forget"], lost["held_out"], seed=seed)
                found.append([*gaps, 2 * abs(mia - 0.5)])
                rates.append(accuracy(result.model, parts["held_out"]))
                advantages.append(2 * abs(held - 0.5))
        means = np.mean(found, axis=0)
        assert list(trial["objectives"].values()) == pytest.approx(means.tolist(), abs=1e-6)
        assert trial["norm"] == pytest.approx(float(np.sqrt((means**2).sum())), abs=1e-6)
        assert trial["held_out_accuracy"] == pytest.approx(np.mean(rates))
        assert trial["advantage"] == pytest.approx(np.mean(advantages), abs=1e-6)


def test_the_chosen_trial_has_the_smallest_norm_and_its_settings_are_the_recipe(tuned: Tuned) -> None:
    recipes = read_recipes(tuned.path / RECIPES)
    for arm in tuned.results["arms"]:
        best = min(arm["trials"], key=lambda trial: trial["norm"])
        assert arm["chosen"]["trial"] == best["number"]
        (recipe,) = (r for r in recipes.arms if (r.method, r.defense) == (arm["method"], arm["defense"]))
        assert recipe.method_options == {"ngp": best["method_settings"]}
        assert recipe.defense_options == ({} if arm["defense"] is None else {arm["defense"]: best["defense_settings"]})
        assert best["method_settings"]["batch_size"] == 16
    matched = read_recipes(tuned.path / MATCHED_RECIPES)
    assert "least membership advantage" in matched.provenance["notes"][-1]
    assert [arm.trial for arm in matched.arms] == [
        best["trial"]
        for method in json.loads((tuned.path / FRONTIER).read_text())["matched"]
        for best in method["arms"].values()
        if best is not None
    ]
    known = recipes.provenance
    assert known["data_digest"] == tuned.prepared.data.digest
    assert known["tuned_on"]["shadows"] == [1000, 1001]
    assert known["search"] == {"trials": 3, "sampler": "nsga3", "population": 2, "seed": 5}
    assert {"optuna", "scikit-learn", "torch", "warp_unlearning"} <= set(known["versions"])


@pytest.mark.parametrize("name", ["ngp", "ngp-warp"])
def test_a_shadow_audit_takes_the_recipe_of_an_arm(tuned: Tuned, name: str) -> None:
    audit = resolve_as(ShadowConfig, file=tuned.path / "recipes" / f"{name}.yaml")
    arm = shadow_settings(audit, tuned.prepared.data, None).arms[-1]
    (chosen,) = [a["chosen"] for a in tuned.results["arms"] if a["name"] == arm.name]
    assert arm.method_settings == chosen["method_settings"]
    assert arm.defense_settings == chosen["defense_settings"]
    assert audit.training.epochs == 10
    assert "&" not in (tuned.path / "recipes" / f"{name}.yaml").read_text()


def test_the_files_say_that_there_was_an_oracle_and_what_was_left_out(tuned: Tuned) -> None:
    table = (tuned.path / TABLE).read_text()
    for text in (
        table,
        json.dumps(tuned.results),
        yaml.dump(read_recipes(tuned.path / RECIPES).provenance, width=9999),
    ):
        assert "chosen with an oracle" in text
        assert "shadows 1000 to 1001" in text
        assert "Neither the 20 points that are audited nor the test part were forgotten or measured" in text
    assert "| ngp + warp | 3 | 0 | " in table
    assert tuned.results["tuned_on"]["audited_points_left_out"] == 20
    assert tuned.results["tuned_on"]["points"] == 100


def test_the_frontier_marks_the_best_and_the_chosen_and_matches_accuracies(tuned: Tuned) -> None:
    found = json.loads((tuned.path / FRONTIER).read_text())
    for arm, shown in zip(tuned.results["arms"], found["arms"], strict=True):
        assert [point["trial"] for point in shown["points"]] == [0, 1, 2]
        assert [point["trial"] for point in shown["points"] if point["chosen"]] == [arm["chosen"]["trial"]]
        best = max(shown["points"], key=lambda point: (point["accuracy"], -point["advantage"]))
        assert best["pareto"]
    (matched,) = found["matched"]
    assert matched["accuracy_at_least"] == tuned.results["arms"][0]["chosen"]["held_out_accuracy"] - 0.01
    for name, best in matched["arms"].items():
        (points,) = [arm["points"] for arm in found["arms"] if arm["name"] == name]
        enough = [point["advantage"] for point in points if point["accuracy"] >= matched["accuracy_at_least"]]
        assert (best and best["advantage"]) == min(enough, default=None)
    assert (tuned.path / "frontier.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_is_complete_and_done_once(tuned: Tuned, blobs: Path, audited: Path) -> None:
    assert open_run(tuned.path).kind == "tune"
    engine = Serial()
    again = prepare_tuning(TuneRequest(config(blobs, audited=str(audited)), tuned.path))
    assert carry_out_tuning(again, engine) == tuned.results
    assert engine.done == []
    assert not (tuned.path / TRIALS).stat().st_mode & 0o077


def test_lanes_come_to_the_same_trials(tuned: Tuned, blobs: Path, audited: Path, tmp_path: Path) -> None:
    request = TuneRequest(config(blobs, audited=str(audited)), tmp_path / "run")
    lanes = partial(run_here, lanes=Lanes(3, lambda: Lane(torch.device("cpu"))))
    assert carry_out_tuning(prepare_tuning(request), lanes)["arms"] == tuned.results["arms"]


def test_a_stopped_run_goes_on_to_the_same_trials(tuned: Tuned, blobs: Path, audited: Path, tmp_path: Path) -> None:
    request = TuneRequest(config(blobs, audited=str(audited)), tmp_path / "run")
    done = 0
    for limit in (3, 5, 9, 10**9):
        engine = Serial(limit)
        try:
            results = carry_out_tuning(prepare_tuning(request), engine)
        except KeyboardInterrupt:
            assert limit < 10**9
        done += len(engine.done)
    assert results["arms"] == tuned.results["arms"]
    assert done == len(tuned.done)


def test_more_trials_are_added_to_a_finished_run_and_fewer_refused(blobs: Path, tmp_path: Path) -> None:
    few = config(blobs, defenses=[], trials=2, shadows=1)
    first = carry_out_tuning(prepare_tuning(TuneRequest(few, tmp_path / "run")), Serial())
    more = few.model_copy(update={"trials": 4})
    stopped = prepare_tuning(TuneRequest(more, tmp_path / "run"))
    with pytest.raises(KeyboardInterrupt):
        carry_out_tuning(stopped, Serial(limit=0))
    assert not stopped.run.complete
    engine = Serial()
    results = carry_out_tuning(prepare_tuning(TuneRequest(more, tmp_path / "run")), engine)
    assert results["arms"][0]["trials"][:2] == first["arms"][0]["trials"]
    assert engine.done.count("tuning-trial") <= 2
    assert "tuning-train" not in engine.done
    with pytest.raises(InputError, match="has 4 trials of each arm and 2 were asked for; give --trials 4 or more"):
        carry_out_tuning(prepare_tuning(TuneRequest(few, tmp_path / "run")), Serial())


def test_a_trial_that_diverges_is_recorded_with_its_reason(blobs: Path, tmp_path: Path) -> None:
    ranges = {"ngp": {"lr": {"low": 1e30, "high": 1e31, "log": True}}}
    settings = config(blobs, defenses=[], trials=2, shadows=1, forget_sets=2, ranges=ranges)
    results = carry_out_tuning(prepare_tuning(TuneRequest(settings, tmp_path / "run")), Serial())
    (arm,) = results["arms"]
    assert (arm["failed"], arm["complete"], arm["chosen"]) == (2, 0, None)
    for trial in arm["trials"]:
        assert (trial["state"], trial["objectives"]) == ("failed", None)
        assert trial["reason"].startswith("shadow 1000, forget set 0: ")
        assert "finite" in trial["reason"]
    assert read_recipes(tmp_path / "run" / RECIPES).arms == []
    assert "| ngp | 2 | 2 | none complete |" in (tmp_path / "run" / TABLE).read_text()


def test_any_other_error_ends_the_run(blobs: Path, tmp_path: Path) -> None:
    class Failing(Serial):
        def __call__(self, jobs: Sequence[Job], work: Work, store: Store, **options: Any) -> Outcome:
            if jobs[0].key.kind != "tuning-trial":
                return super().__call__(jobs, work, store)
            return Outcome((), (), {jobs[1].key: "RuntimeError: of some kind"}, ())

    settings = config(blobs, defenses=[], trials=2)
    with pytest.raises(
        TrialError, match="tuning-trial of ngp, shadow 1001, forget set 0 failed: RuntimeError: of some"
    ):
        carry_out_tuning(prepare_tuning(TuneRequest(settings, tmp_path / "run")), Failing())
    results = carry_out_tuning(prepare_tuning(TuneRequest(settings, tmp_path / "run")), Serial())
    assert results["arms"][0]["complete"] == 2


def test_another_configuration_is_refused_by_key(tuned: Tuned, blobs: Path, audited: Path) -> None:
    with pytest.raises(InputError, match=r"another configuration \(fraction: 0\.2 there, 0\.25 now\)"):
        prepare_tuning(TuneRequest(config(blobs, audited=str(audited), fraction=0.25), tuned.path))


def test_two_processes_do_not_search_in_one_run(blobs: Path, tmp_path: Path) -> None:
    prepared = prepare_tuning(TuneRequest(config(blobs), tmp_path / "run"))
    with FileLock(tmp_path / "run" / ".lock"), pytest.raises(InputError, match="another process is at work in"):
        carry_out_tuning(prepared, Serial())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"methods": ["ngq"], "method_options": {}}, "unknown method 'ngq'; did you mean 'ngp'"),
        ({"methods": ["retrain"], "method_options": {}}, "retrain is what the trials are measured against"),
        ({"defenses": ["wrap"]}, "unknown defence 'wrap'; did you mean 'warp'"),
        ({"method_options": {"scrub": {"lr": 1}}}, "method_options has 'scrub', which is not among those tuned: ngp"),
        ({"defense_options": {"cob": {}}}, "defense_options has 'cob'"),
        ({"ranges": {"pgu": {}}}, "ranges has 'pgu'"),
        ({"method_options": {"ngp": {"lr": -1}}}, "ngp: lr is -1; it must be above 0"),
        ({"ranges": {"ngp": {"alpha": {"low": 0, "high": 2}}}}, "ngp: alpha is 2"),
        ({"ranges": {"ngp": {"epochs": {"low": 1.5, "high": 2}}}}, "is for a whole number"),
        ({"ranges": {"warp": {"energy": {"low": 0.5, "high": 1.5}}}}, "the energy to protect is 1.5"),
        ({"ranges": {"warp": {"enrgy": {"low": 0.5, "high": 1}}}}, "warp has no option 'enrgy' to search"),
        ({"fraction": 0.02}, "too few for 1 forget sets of 1"),
    ],
)
def test_bad_settings_are_named_before_anything_is_written(
    blobs: Path, tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        prepare_tuning(TuneRequest(config(blobs, **changed), tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_nothing_to_search_is_refused(blobs: Path, tmp_path: Path) -> None:
    held = {"lr": 0.1, "weight_decay": 0.0, "epochs": 1, "batch_size": 16, "alpha": 0.9}
    with pytest.raises(InputError, match="nothing of ngp is left to search"):
        prepare_tuning(TuneRequest(config(blobs, method_options={"ngp": held}), tmp_path / "run"))


def test_recipes_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_recipes(tmp_path / "none.yaml")
    (tmp_path / "a.yaml").write_text("schema_version: 2\n")
    with pytest.raises(DataError, match=r"a\.yaml holds no recipes of a `warp tune`: schema_version"):
        read_recipes(tmp_path / "a.yaml")
    (tmp_path / "a.yaml").write_text("a: [")
    with pytest.raises(InputError, match="is not YAML"):
        read_recipes(tmp_path / "a.yaml")
