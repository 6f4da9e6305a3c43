"""A tuning as one run that can be stopped at any moment and started again: `warp tune`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from ..config import RESOLVED, TuneConfig, as_plain
from ..data.files import array_digest, write_atomically
from ..data.preprocess import ImageData, load_data
from ..data.table import read_request
from ..errors import InputError, WarpError
from ..models.modes import choose_device
from ..models.own import check_examples, file_digest
from ..randomness import Streams
from ..report.utility_figures import frontier_plot
from ..runs.directory import MANIFEST, RunDirectory, dump_yaml, open_run, start_run
from ..runs.drain import Engine, Watch
from ..runs.jobs import Job
from ..runs.store import Store
from ..studies.shadow_work import new_network
from ..studies.tuning_design import audited_rows, tuning_design
from ..studies.tuning_plan import Planned, TuningPlan, make_plan
from ..studies.tuning_recipes import MATCHED, at_matched_accuracy, recipes, shadow_options
from ..studies.tuning_results import frontier, told, tuning_results
from ..studies.tuning_search import Search, imported_optuna, storage_at
from ..studies.tuning_settings import TuningSettings
from ..studies.tuning_tables import markdown
from ..studies.tuning_work import TuningWork
from ..studies.workplace import Workplace
from ..unlearning.record import now, versions
from .job_request import JobRequest
from .run_account import machine_account
from .tuned_arms import tuned_arms

RESULTS, TABLE, FRONTIER, RECIPES, TRIALS = "results.json", "tuning.md", "frontier.json", "recipes.yaml", "trials.db"
MATCHED_RECIPES = "recipes-matched.yaml"
_NO_WATCH: AbstractContextManager[Watch | None] = nullcontext()
Watching = Callable[[str, Sequence[Job]], AbstractContextManager[Watch | None]]
"""Given a heading and the jobs that come next: a context with what is told of them."""


class TrialError(WarpError):
    """A trial that could not be made, other than by diverging."""


@dataclass(frozen=True)
class TuneRequest(JobRequest[TuneConfig]):
    """What to tune; `network_file` is a user's FILE.py:build."""

    network_file: str | None = None


@dataclass(frozen=True, eq=False)
class PreparedTuning:
    """A run with its plan, ready to be carried out."""

    run: RunDirectory
    store: Store
    plan: TuningPlan
    data: ImageData
    config: TuneConfig
    found: Mapping[str, Any]


def prepare_tuning(request: TuneRequest) -> PreparedTuning:
    """Read the data, check the settings and open the run; nothing is trained."""
    imported_optuna()
    config = request.config
    data = load_data(**config.data.load_options())
    count = len(data.train)
    audited = None if config.audited is None else audited_rows(read_request(config.audited), count)
    settings = tuning_settings(config, data, request.network_file)
    check_examples(new_network(settings.models, data, Streams(0, "check")), {"points": data.train})
    design = tuning_design(
        count,
        shadows=config.shadows,
        forget_sets=config.forget_sets,
        fraction=config.fraction,
        seed=config.seed,
        audited=audited,
    )
    network_digest = None if request.network_file is None else file_digest(request.network_file)
    found = {
        "data": data.digest,
        "network_file": network_digest,
        "audited": None if audited is None else array_digest(audited),
        "versions": {**versions(), "optuna": version("optuna"), "scikit-learn": version("scikit-learn")},
    }
    # The number of trials may grow from one start to the next; all else is another run.
    decides = {name: value for name, value in as_plain(config).items() if name != "trials"}
    run = start_run(request.out, kind="tune", config=decides | {RESOLVED: found})
    plan = make_plan(settings, data, network_digest=network_digest, design=design)
    return PreparedTuning(run, request.open_store(), plan, data, config, found)


def carry_out_tuning(
    prepared: PreparedTuning, engine: Engine, *, watching: Watching = lambda heading, jobs: _NO_WATCH
) -> dict[str, Any]:
    """Do what is not done yet and write the results; where all trials are there, only read them."""
    with prepared.run.lock(wait=False):  # Rounds follow each other, so only one process may search.
        if prepared.run.complete:
            results = open_run(prepared.run.path).read_json(RESULTS)
            there = int(results["search"]["trials"])
            if there == prepared.config.trials:
                return results
            if there > prepared.config.trials:
                raise InputError(
                    f"{prepared.run.path} has {there} trials of each arm and {prepared.config.trials} were asked for; "
                    f"give --trials {there} or more, or choose another --out"
                )
            (prepared.run.path / MANIFEST).unlink()
        return _searched(prepared, engine, watching)


def tuning_settings(config: TuneConfig, data: ImageData, network_file: str | None) -> TuningSettings:
    """The settings of a configuration, those of methods, defences and ranges checked."""
    trained = len(data.train) // 2
    retained = trained - round(config.fraction * trained)
    return TuningSettings(
        data=config.data.load_options(),
        network=config.model.name,
        network_options=config.model.options,
        training=config.training.model_dump(exclude={"recipe"}),
        arms=tuned_arms(config, examples=len(data.train), retained=retained),
        trials=config.trials,
        sampler=config.sampler,
        population=config.population,
        shadows=config.shadows,
        forget_sets=config.forget_sets,
        fraction=config.fraction,
        seed=config.seed,
        device=str(choose_device(config.device)),
        network_file=network_file,
    )


def _searched(prepared: PreparedTuning, engine: Engine, watching: Watching) -> dict[str, Any]:
    plan, store = prepared.plan, prepared.store
    place = Workplace(plan.settings.data, plan.settings.device)
    _do(prepared, engine, place, plan.references(), "originals and retrained models", watching)
    about = {name: prepared.found[name] for name in ("data", "network_file", "audited")}
    with storage_at(prepared.run.path / TRIALS) as storage:
        searches = [Search(storage, arm, plan.settings, about=about) for arm in plan.settings.arms]
        while any(asked := [search.round() for search in searches]):
            tasks: list[Planned] = []
            for arm, trials in zip(plan.settings.arms, asked, strict=True):
                for trial in trials:
                    tasks += plan.trial(arm.arm(trial.values))
            last = max(trial.number for trials in asked for trial in trials) + 1
            _do(prepared, engine, place, tasks, f"trials up to {last} of {plan.settings.trials} of each arm", watching)
            for arm, search, trials in zip(plan.settings.arms, searches, asked, strict=True):
                for trial in trials:
                    objectives, reason = told(plan, store, arm, trial)
                    search.tell(trial.number, objectives, reason=reason)
        found = {arm.name: search.trials() for arm, search in zip(plan.settings.arms, searches, strict=True)}
    results = tuning_results(plan, store, found) | _about_run(prepared)
    _write(prepared, results)
    return results


def _do(
    prepared: PreparedTuning,
    engine: Engine,
    place: Workplace,
    tasks: Sequence[Planned],
    heading: str,
    watching: Watching,
) -> None:
    """Put the results of these tasks in the store; a job that fails, which is not one that diverges, ends the run."""
    jobs = [job for _, job in tasks]
    work = TuningWork(prepared.plan, {job.key.digest: task for task, job in tasks}, place)
    with watching(heading, jobs) as watch:
        outcome = engine(jobs, work, prepared.store, watch=watch)
    for task, job in tasks:
        if job.key in outcome.failed:
            of = task.arm.name if task.arm is not None else "the model"
            shadow = prepared.plan.design[task.unit.shadow].number
            raise TrialError(
                f"{task.kind} of {of}, shadow {shadow}, forget set {task.unit.part} failed: "
                f"{outcome.failed[job.key]}; what was finished is kept, start again to go on"
            )


def _about_run(prepared: PreparedTuning) -> dict[str, Any]:
    settings = prepared.plan.settings
    return {
        "date": now(),
        "data": prepared.data.name,
        "model": settings.network_file or settings.network,
        "configuration": as_plain(prepared.config),
        "digests": {name: prepared.found[name] for name in ("data", "network_file", "audited")},
        "versions": prepared.found["versions"],
        "hardware": machine_account(settings.device),
    }


def _write(prepared: PreparedTuning, results: Mapping[str, Any]) -> None:
    run, shown = prepared.run, frontier(results)
    run.write_json(RESULTS, results)
    run.write_json(FRONTIER, shown)
    write_atomically(run.path / TABLE, markdown(results).encode())
    plot = frontier_plot(shown)
    for form in ("png", "pdf"):
        write_atomically(run.path / f"frontier.{form}", plot.file(form))
    provenance = _provenance(results)
    write_atomically(run.path / RECIPES, _yaml(recipes(results, provenance)))
    noted = {**provenance, "notes": [*provenance["notes"], MATCHED]}
    write_atomically(run.path / MATCHED_RECIPES, _yaml(recipes(at_matched_accuracy(results, shown), noted)))
    folder = run.path / "recipes"
    folder.mkdir(mode=0o700, exist_ok=True)
    for arm in results["arms"]:
        if arm["chosen"] is not None:
            name = arm["method"] if arm["defense"] is None else f"{arm['method']}-{arm['defense']}"
            config = _audit_config(results, arm) | {RESOLVED: {**provenance, "trial": arm["chosen"]["trial"]}}
            write_atomically(folder / f"{name}.yaml", _yaml(config))
    run.finish()


def _yaml(data: Mapping[str, Any]) -> bytes:
    # Through JSON: what is there twice would else be written once and referred to.
    return dump_yaml(json.loads(json.dumps(data))).encode()


def _audit_config(results: Mapping[str, Any], arm: Mapping[str, Any]) -> dict[str, Any]:
    """What `warp audit shadow` takes, with the settings of one arm."""
    given = results["configuration"]
    return {name: given[name] for name in ("data", "model", "training")} | shadow_options(arm)


def _provenance(results: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "made_by": "warp tune",
        "date": results["date"],
        "data": results["data"],
        "data_digest": results["digests"]["data"],
        "model": results["model"],
        "training": results["configuration"]["training"],
        "tuned_on": results["tuned_on"],
        "audited_digest": results["digests"]["audited"],
        "search": results["search"],
        "versions": results["versions"],
        "notes": results["notes"],
    }
