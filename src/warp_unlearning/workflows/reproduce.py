"""A study of the paper as jobs on a store, from which it grows and resumes anywhere: `warp reproduce`."""

from __future__ import annotations

import io
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import numpy as np
import torch

from ..config.reproduce import ReproduceConfig
from ..config.resolve import as_plain
from ..config.tuned_recipes import read_recipes
from ..data.atomic import write_atomically
from ..data.load import load_data
from ..defense.registry import make_defense
from ..errors import InputError, nearest
from ..methods.registry import make_method
from ..models.device import choose_device
from ..models.registry import build_model, suggest_options
from ..randomness import Streams
from ..report.paper.registry import render
from ..runs.directory import CONFIG, MANIFEST, RunDirectory
from ..runs.engine import Engine, Outcome
from ..runs.events import Event, Watch, ignore
from ..runs.store import Store
from ..runs.tally import Tally
from ..runs.yaml_text import dump_yaml
from ..studies.cell_plan import plan_cells
from ..studies.cell_settings import CellSettings
from ..studies.cell_work import CellWork
from ..studies.planned import Planned
from ..studies.reconstruction_study import plan_adaptive, plan_reconstruction
from ..studies.runtime_study import plan_runtime
from ..studies.study import STUDIES, Asked, Settings, study_settings
from ..studies.study_results import shadows_complete, study_results
from ..training.recipe import Recipe
from ..training.training import Training
from ..unlearning.record import now, versions

RESULTS, TABLE, FIGURES, AUDITED = "results.json", "table.md", "figures", "audited.npy"
# Forgotten by fewer other shadows, a point tells too little of how its scores spread.
_FEWEST = 2.0
_TIMED_UPDATES = 3


@dataclass(frozen=True)
class ReproduceRequest:
    """Which study, where its results go, and the store, which several studies may share: they have jobs in common.
    `anyway` does at the size of the paper without a GPU what takes days. `only_results` does nothing but read what the
    store holds, which a device may have made that is not here. `command` is noted in the results.
    """

    config: ReproduceConfig
    out: Path
    store: Path | None = None
    anyway: bool = False
    only_results: bool = False
    command: str = ""


@dataclass(frozen=True, eq=False)
class PreparedStudy:
    """A study ready to be carried out."""

    run: RunDirectory
    store: Store
    planned: Planned
    config: ReproduceConfig


def prepare_study(request: ReproduceRequest) -> PreparedStudy:
    """Read the data, check what is asked for and plan the jobs; nothing is trained."""
    config = _settled(request.config, uses_device=not request.only_results)
    if not request.anyway and not request.only_results:
        _require_gpu(config)
    planned = _plan_rows(config) if config.study in _ROWS else _plan_cells(config)
    run = _open(request.out, config)
    for name, data in planned.files.items():
        write_atomically(run.path / name, data)
    return PreparedStudy(run, Store(request.store or request.out / "store"), planned, config)


def study_names() -> tuple[str, ...]:
    """Every study there is."""
    return (*STUDIES, *_ROWS)


def carry_out_study(
    prepared: PreparedStudy, engine: Engine, *, budget: float | None = None, watch: Watch = ignore, command: str = ""
) -> dict[str, Any]:
    """Do what is not done yet, for about `budget` minutes, and write results, table and figures from what is there."""
    jobs = prepared.planned.to_do(prepared.store)
    tally = Tally(jobs)

    def both(event: Event) -> None:
        tally.note(event)
        watch(event)

    until = None if budget is None else monotonic() + 60 * budget
    outcome = engine.run(jobs, work=prepared.planned.work, store=prepared.store, watch=both, until=until)
    found = prepared.planned.results(prepared.store)
    results = found | _about(prepared, outcome, tally, command, made_on=found.get("made_on", []))
    _write(prepared.run, results, complete=outcome.complete)
    return results


def _write(run: RunDirectory, results: dict[str, Any], *, complete: bool) -> None:
    run.write_json(RESULTS, results)
    rendered = render(results, folder=FIGURES)
    write_atomically(run.path / TABLE, rendered.markdown.encode())
    (run.path / FIGURES).mkdir(exist_ok=True)
    for name, figure in rendered.figures.items():
        write_atomically(run.path / FIGURES / name, figure)
    if complete:
        run.finish()


def _about(
    prepared: PreparedStudy, outcome: Outcome, tally: Tally, command: str, *, made_on: Sequence[str]
) -> dict[str, Any]:
    told = prepared.planned.told
    failures = {**outcome.failed, **dict.fromkeys(outcome.blocked, "something it needs failed")}
    gpu = prepared.config.device.startswith("cuda")
    return {
        "date": now(),
        "complete": outcome.complete,
        "left": len(outcome.left),
        "stages": [stage.as_json() for stage in tally.stages.values()],
        "failures": [{"job": told(key), "reason": why} for key, why in failures.items()],
        "notes": list(prepared.planned.said),
        "commands": [command] if command else [],
        "configuration": as_plain(prepared.config),
        "versions": versions(),
        "hardware": _hardware(made_on, gpu=gpu),
    }


def _hardware(made_on: Sequence[str], *, gpu: bool) -> dict[str, Any]:
    """What models were made on; of a GPU the name, which may be of another machine than this."""
    if gpu:
        here = torch.cuda.get_device_name() if torch.cuda.is_available() else "CUDA, on other machines than this"
        return {"device": "; ".join(made_on) or here}
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count() or 0,
        "device": "CPU",
    }


def _settled(config: ReproduceConfig, *, uses_device: bool) -> ReproduceConfig:
    """With the device and the size that "auto" stands for."""
    if config.study not in study_names():
        raise InputError(f"there is no study {config.study!r}; {nearest(config.study, study_names())}")
    named = config.device != "auto" and not uses_device
    device = config.device if named else str(choose_device(config.device))
    size = config.size
    if size == "auto":
        size = "paper" if device.startswith("cuda") else "small"
    if size == "paper" and config.data_path is None:
        raise InputError(
            "the size of the paper needs CIFAR-10; give its folder with --data-path (`warp train --data cifar10 -o "
            "data.fetch=true` says how to get it), or --size small, which has its data with it"
        )
    return config.model_copy(update={"device": device, "size": size})


def _asked(config: ReproduceConfig) -> Asked:
    methods, defenses = _from_recipes(config.recipes)
    return Asked(
        methods=tuple(dict.fromkeys(config.methods)),
        defenses=config.defenses,
        method_options=_over(methods, config.method_options, of=0),
        defense_options=_over(defenses, config.defense_options, of=1),
        shadows=config.shadows,
        forget_sets=config.forget_sets,
        pairs=config.pairs,
        epochs=config.epochs,
        seed=config.seed,
        device=config.device,
        data_path=config.data_path,
    )


def _over(recipes: Settings, given: Settings, *, of: int) -> Settings:
    """What is given for a method or a defence goes over the recipes of every arm that has it; `of` says which of the
    two a name like "method + defence" is looked up by.
    """
    found: dict[str, Mapping[str, Any]] = {**given}
    for name, settings in recipes.items():
        own = name.split(" + ")[min(of, name.count(" + "))]
        found[name] = {**settings, **given.get(own, {}), **given.get(name, {})}
    return found


def _from_recipes(file: Path | None) -> tuple[Settings, Settings]:
    """Settings by arm; a random kick has those of WARP, whose control it is."""
    methods: dict[str, Mapping[str, Any]] = {}
    defenses: dict[str, Mapping[str, Any]] = {}
    for arm in () if file is None else read_recipes(file).arms:
        names = [arm.method] if arm.defense is None else [f"{arm.method} + {arm.defense}"]
        names += [f"{arm.method} + kick"] if arm.defense == "warp" else []
        for name in names:
            methods[name] = arm.method_options.get(arm.method, {})
            if arm.defense is not None:
                defenses[name] = arm.defense_options.get(arm.defense, {})
    return methods, defenses


def _plan_cells(config: ReproduceConfig) -> Planned:
    settings = study_settings(config.study, config.size, _asked(config))
    _require_arms(settings)
    _require_resolution(settings)
    plan = plan_cells(settings, load_data(**settings.data), defense_seed=config.defense_seed)
    audited = io.BytesIO()
    np.save(audited, plan.division.audited)

    def results(store: Store) -> dict[str, Any]:
        found = study_results(config.study, plan, store)
        found["audited"] |= {"data": settings.data["name"], "model": settings.network}
        return found | {"shadows_complete": shadows_complete(plan, store)}

    return Planned(
        plan.to_do,
        CellWork(plan, config.defense_seed),
        lambda key: str(plan.cells[key.digest]),
        results,
        said=("Experiment only: what defences draw comes from a seed in the configuration, so anyone can undo it.",),
        files={AUDITED: audited.getvalue()},
    )


def _require_arms(settings: CellSettings) -> None:
    """Unknown names and settings are found before anything is trained."""
    for arm in settings.arms:
        make_method(arm.method, **arm.method_settings)
        if arm.defense is not None:
            make_defense(arm.defense, **arm.defense_settings)


def _require_resolution(settings: CellSettings) -> None:
    """An error where points are forgotten by too few shadows to tell anything of them."""
    sets = min(arm.sets for arm in settings.arms)
    others = (settings.shadows / 2 - 1) * sets / settings.parts
    if others < _FEWEST:
        needed = 2 * (int(-(-_FEWEST * settings.parts // sets)) + 1)
        raise InputError(
            f"with {settings.shadows} shadows and {sets} of {settings.parts} forget sets a point is forgotten by "
            f"{others:.1f} other shadows on average, and the audit fits its scores on at least {_FEWEST:g}; give "
            f"--shadows {needed} or more, or more --forget-sets"
        )


def _require_gpu(config: ReproduceConfig) -> None:
    """An error, at the size of the paper without a GPU, that says what it would cost."""
    if config.size != "paper" or not config.device.startswith("cpu") or config.study not in STUDIES:
        return
    settings = study_settings(config.study, "paper", _asked(config))
    hours = settings.shadows * _training_seconds(settings) / 3600
    raise InputError(
        f"there is no GPU, and training the {settings.shadows} originals alone would take about {hours:,.0f} hours of "
        "one core here, going by a few updates; give --size small, which takes minutes, or --anyway"
    )


def _training_seconds(settings: CellSettings) -> float:
    """What the training of one original takes here, from a few updates of it on one thread."""
    data = load_data(**settings.data)
    half = (len(data.train) - settings.validation) // 2
    recipe = Recipe(**settings.training)
    options = {**suggest_options(settings.network, data.shape, len(data.classes)), **settings.network_options}
    streams = Streams(0, "cost")
    model = build_model(settings.network, generator=streams.generator("weights"), **options)
    training = Training(model, data.train.select(torch.arange(half)), recipe=recipe, streams=streams, fill=data.fill)
    updates = training.updates()
    of = next(updates).of
    began = perf_counter()
    for _ in range(_TIMED_UPDATES):
        next(updates)
    return of * (perf_counter() - began) / _TIMED_UPDATES


def _open(out: Path, config: ReproduceConfig) -> RunDirectory:
    """The folder of a study. Another configuration is no other run: the store tells its results apart by their keys, so
    that a study can grow.
    """
    if out.is_dir() and any(out.iterdir()) and not (out / CONFIG).is_file():
        raise InputError(f"{out} holds files and no study; give another folder with --out")
    out.mkdir(parents=True, exist_ok=True)
    (out / MANIFEST).unlink(missing_ok=True)
    write_atomically(out / CONFIG, dump_yaml(as_plain(config)).encode())
    return RunDirectory(out, "study")


_ROWS = ("runtime", "reconstruction", "adaptive")
_NOT_FOR_ROWS = ("shadows", "forget_sets", "pairs", "defenses")
_NOT_FOR_IMAGES = ("methods", "epochs", "recipes", "method_options", "defense_options")


def _plan_rows(config: ReproduceConfig) -> Planned:
    images = config.study != "runtime"
    refused = _NOT_FOR_ROWS + (_NOT_FOR_IMAGES if images else ())
    for name in refused:
        if getattr(config, name) != ReproduceConfig.model_fields[name].get_default(call_default_factory=True):
            raise InputError(f"the study {config.study!r} has no use for {name}; leave it out")
    asked = _asked(config)
    if config.study == "runtime":
        return plan_runtime(asked, config.size, defense_seed=config.defense_seed)
    return (plan_reconstruction if config.study == "reconstruction" else plan_adaptive)(asked, config.size)
