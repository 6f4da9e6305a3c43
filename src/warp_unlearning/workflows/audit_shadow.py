"""A shadow audit as one run that can be stopped at any moment and started again: `warp audit shadow`."""

from __future__ import annotations

import json
import os
import platform
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from json import dumps
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import torch
from filelock import FileLock

from ..config.resolve import RESOLVED, as_plain
from ..config.shadow import ShadowConfig
from ..data.atomic import write_atomically
from ..data.dataset import ImageData
from ..data.load import load_data
from ..defense.registry import make_defense
from ..errors import DataError, InputError
from ..methods.recipes import SMALL_DATA
from ..methods.registry import make_method
from ..models.device import choose_device
from ..models.example_checks import check_examples
from ..randomness import Streams
from ..runs.directory import RunDirectory, start_run
from ..runs.engine import Engine, Outcome
from ..runs.events import Event, Watch, ignore
from ..runs.job import Job
from ..runs.store import Store
from ..runs.store_errors import MissingEntry
from ..runs.tally import Tally
from ..studies.shadow_plan import ShadowPlan, Task, plan_shadows, unlearnings
from ..studies.shadow_results import shadow_results
from ..studies.shadow_settings import Arm, ShadowSettings
from ..studies.shadow_work import ShadowWork, new_network
from ..unlearning.record import now, versions
from .unlearn import SMALL

RESULTS = "results.json"
SEEDS = "private/defense_seeds.json"
# Results that are corrupt when they are read are made again so often.
TRIES = 3


@dataclass(frozen=True)
class ShadowRequest:
    """What to audit and where the results go. The store is in the run unless another is named, which several audits may
    share. `network_file` is a user's FILE.py:build.
    """

    config: ShadowConfig
    out: Path
    store: Path | None = None
    network_file: str | None = None


@dataclass(frozen=True, eq=False)
class Prepared:
    """A run with its plan, ready to be carried out."""

    run: RunDirectory
    store: Store
    plan: ShadowPlan
    data: ImageData
    seeds: Mapping[Task, int]


def prepare_shadows(request: ShadowRequest) -> Prepared:
    """Read the data, check the settings, open the run and plan the jobs; nothing is trained."""
    data = load_data(**_data(request.config))
    settings = shadow_settings(request.config, data, request.network_file)
    network_digest = _file_digest(request.network_file)
    check_examples(new_network(settings, data, Streams(0, "check")), {"points": data.train, "test": data.test})
    found = {"data": data.digest, "network_file": network_digest, "versions": versions()}
    with _starting(request.out):
        run = start_run(request.out, kind="audit shadow", config=as_plain(request.config) | {RESOLVED: found})
    seeds = _defense_seeds(run, settings, request.config.defense_seed)
    plan = plan_shadows(
        settings, data, network_digest=network_digest, defense_seeds=[seeds[t] for t in unlearnings(settings)]
    )
    return Prepared(run, Store(request.store or request.out / "store"), plan, data, seeds)


def carry_out(prepared: Prepared, engine: Engine, *, watch: Watch = ignore) -> dict[str, Any]:
    """Do what is not done yet, and write the results; a run in which jobs failed stays open, to be tried again."""
    if prepared.run.complete:
        return prepared.run.read_json(RESULTS)
    tally = Tally(prepared.plan.jobs, known=known_seconds(prepared))

    def both(event: Event) -> None:
        tally.note(event)
        watch(event)

    work = ShadowWork(prepared.plan, prepared.seeds)
    for _ in range(TRIES):
        outcome = engine.run(prepared.plan.jobs, work=work, store=prepared.store, watch=both)
        try:
            results = _results(prepared, outcome, tally)
            break
        except MissingEntry as lost:
            # A corrupt result is set aside when it is read, and made again.
            problem = lost
    else:
        raise problem
    with _locked(prepared.run):
        return _settled(prepared.run, results, complete=outcome.complete)


def _settled(run: RunDirectory, results: dict[str, Any], *, complete: bool) -> dict[str, Any]:
    """Write the results, unless another process has finished the run meanwhile: then its results."""
    if run.complete:
        return run.read_json(RESULTS)
    run.write_json(RESULTS, results)
    if complete:
        run.finish()
    return results


def shadow_settings(config: ShadowConfig, data: ImageData, network_file: str | None) -> ShadowSettings:
    """The settings of a configuration, the methods' and defences' checked."""
    small = config.recipe == "small" or (config.recipe == "auto" and len(data.train) < SMALL)
    for name in {*config.method_options} - {*config.methods}:
        raise InputError(f"method_options has {name!r}, which is not among the methods {config.methods}")
    for name in {*config.defense_options} - {*config.defenses}:
        raise InputError(f"defense_options has {name!r}, which is not among the defences {config.defenses}")
    arms = []
    for method in dict.fromkeys(config.methods):
        chosen = {**(SMALL_DATA.get(method, {}) if small else {}), **config.method_options.get(method, {})}
        make_method(method, **chosen)
        arms.append(Arm(method, chosen))
        for defense in dict.fromkeys(config.defenses):
            options = config.defense_options.get(defense, {})
            make_defense(defense, **options)
            arms.append(Arm(method, chosen, defense, options))
    return ShadowSettings(
        data=_data(config),
        network=config.model.name,
        network_options=config.model.options,
        training=config.training.model_dump(exclude={"recipe"}),
        arms=tuple(arms),
        shadows=config.shadows,
        forget_sets=config.forget_sets,
        share=config.share,
        pairs=config.pairs,
        seed=config.seed,
        device=str(choose_device(config.device)),
        network_file=network_file,
    )


def _data(config: ShadowConfig) -> dict[str, Any]:
    about = config.data
    return {"name": about.name, "path": about.path, "fetch": about.fetch, "size": about.size}


def _file_digest(spec: str | None) -> str | None:
    if spec is None:
        return None
    file = Path(spec.rpartition(":")[0])
    try:
        return sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"the network file {file} cannot be read: {error.strerror}") from error


def _starting(out: Path) -> FileLock:
    """One process of this machine at a time may make the folder, which is not there yet to hold a lock."""
    name = sha256(str(out.resolve()).encode()).hexdigest()[:24]
    return FileLock(Path(gettempdir()) / f"warp-{os.getuid()}-{name}.lock", mode=0o600)


def _locked(run: RunDirectory) -> FileLock:
    """One process at a time: two may be started on the same run."""
    return FileLock(run.path / ".lock", mode=0o600)


def _defense_seeds(run: RunDirectory, settings: ShadowSettings, fixed: int | None) -> dict[Task, int]:
    """One secret number for each unlearning, drawn when the run is planned for the first time and kept in its private
    part: whoever can draw a defence's moves again can undo them. From `fixed` where an experiment is to be repeated.
    """
    tasks = list(unlearnings(settings))
    if fixed is not None:
        return {task: Streams(fixed, "defense").number(str(task)) for task in tasks}
    file = run.path / SEEDS
    with _locked(run):
        if not file.is_file():
            file.parent.mkdir(mode=0o700, exist_ok=True)
            write_atomically(file, dumps([secrets.randbits(63) for _ in tasks]).encode())
    try:
        seeds = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise DataError(
            f"{file} cannot be read ({error}); the audit cannot go on without it: begin a new run"
        ) from error
    if not isinstance(seeds, list) or len(seeds) != len(tasks):
        raise DataError(f"{file} does not hold {len(tasks)} numbers; it is damaged: begin a new run")
    return dict(zip(tasks, map(int, seeds), strict=True))


def known_seconds(prepared: Prepared) -> dict[str, float]:
    """What the results that are in the store took, by digest."""
    there = [job.key for job in prepared.plan.jobs if prepared.store.has(job.key)]
    return {key.digest: prepared.store.read(key).manifest.seconds or 0.0 for key in there}


def pilot(prepared: Prepared) -> list[Job]:
    """The jobs of the first forget set of the first shadow: one of each kind and arm, to learn what the rest costs."""
    chosen = [Task(kind, 0) for kind in ("train", "score")]
    chosen += [t for t in prepared.plan.tasks.values() if t.shadow == 0 and t.part == 0]
    keys = {prepared.plan.key(task) for task in chosen}
    return [job for job in prepared.plan.jobs if job.key in keys]


def seconds_to_come(prepared: Prepared) -> float:
    """The seconds of work, on one process, that jobs not yet done will take, each like the done ones of its kind and
    arm, or of its kind where none of that arm is done.
    """
    known, tasks = known_seconds(prepared), prepared.plan.tasks
    by_arm: dict[tuple[str, int], list[float]] = {}
    by_kind: dict[str, list[float]] = {}
    for digest, seconds in known.items():
        by_arm.setdefault((tasks[digest].kind, tasks[digest].arm), []).append(seconds)
        by_kind.setdefault(tasks[digest].kind, []).append(seconds)
    total = 0.0
    for job in prepared.plan.jobs:
        if job.key.digest not in known:
            task = tasks[job.key.digest]
            like = by_arm.get((task.kind, task.arm)) or by_kind.get(task.kind) or [0.0]
            total += sum(like) / len(like)
    return total


def _results(prepared: Prepared, outcome: Outcome, tally: Tally) -> dict[str, Any]:
    plan, config = prepared.plan, prepared.run.config()
    found = shadow_results(plan, prepared.store)
    found["audited"] |= {
        "data": prepared.data.name,
        "model": plan.settings.network_file or plan.settings.network,
        "classes": list(prepared.data.classes),
    }
    failures = {**outcome.failed, **dict.fromkeys(outcome.blocked, "something it needs failed")}
    return found | {
        "date": now(),
        "stages": [stage.as_json() for stage in tally.stages.values()],
        "failures": [{"job": str(plan.tasks[key.digest]), "reason": why} for key, why in failures.items()],
        "notes": _notes(config),
        "configuration": {k: v for k, v in config.items() if k != RESOLVED},
        "digests": {"data": prepared.data.digest, "results": results_digest(found)},
        "versions": versions(),
        "hardware": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count() or 0,
            "device": torch.cuda.get_device_name() if plan.settings.device.startswith("cuda") else "CPU",
        },
    }


def _notes(config: Mapping[str, Any]) -> list[str]:
    if config.get("defense_seed") is None:
        return []
    return [
        "Experiment only: the defences' random draws came from a seed in the configuration, so anyone can undo them."
    ]


def results_digest(results: Mapping[str, Any]) -> str:
    """A digest of what the configuration decides: everything about the arms but seconds."""
    arms = [{k: v for k, v in arm.items() if k != "seconds"} for arm in results["arms"]]
    return sha256(dumps([results["audited"], arms], sort_keys=True).encode()).hexdigest()
