"""A shadow audit as one run that can be stopped at any moment and started again: `warp audit shadow`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from json import dumps
from typing import Any

import torch

from ..cli.request import SMALL
from ..config import RESOLVED, ShadowConfig, as_plain
from ..data.preprocess import ImageData, load_data
from ..defense.registry import make_defense
from ..errors import InputError
from ..methods.registry import SMALL_DATA, make_method
from ..models.modes import choose_device
from ..models.own import check_examples, file_digest
from ..randomness import Streams
from ..report.schema_shadow import Shadow
from ..runs.directory import RunDirectory, open_run, start_run
from ..runs.drain import Engine, Outcome, Watch
from ..runs.progress import stages_of
from ..runs.store import Missing, Store
from ..studies.shadow_cost import pilot
from ..studies.shadow_plan import ShadowPlan, plan_shadows
from ..studies.shadow_results import shadow_results
from ..studies.shadow_settings import Arm, ShadowSettings
from ..studies.shadow_work import ShadowWork, new_network
from ..unlearning.record import now, versions
from .audit_secret import AuditSecret, audit_secret
from .job_request import JobRequest
from .run_account import jobs_account, machine_account

RESULTS = "results.json"
# Results that are corrupt when they are read are made again so often.
TRIES = 3


@dataclass(frozen=True)
class ShadowRequest(JobRequest[ShadowConfig]):
    """What to audit; `network_file` is a user's FILE.py:build."""

    network_file: str | None = None


@dataclass(frozen=True, eq=False)
class Prepared:
    """A run with its plan, ready to be carried out."""

    run: RunDirectory
    store: Store
    plan: ShadowPlan
    data: ImageData
    secret: AuditSecret = field(repr=False)


def prepare_shadows(request: ShadowRequest, *, plan_only: bool = False) -> Prepared:
    """Read the data, check the settings, open the run and plan the jobs; nothing is trained. Where it is for the plan
    only, nothing is written.
    """
    data = load_data(**request.config.data.load_options())
    settings = shadow_settings(request.config, data, request.network_file)
    network_digest = None if request.network_file is None else file_digest(request.network_file)
    check_examples(new_network(settings, data, Streams(0, "check")), {"points": data.train, "test": data.test})
    found = {"data": data.digest, "network_file": network_digest, "versions": versions()}
    run = RunDirectory(request.out, "audit shadow")
    if not plan_only:
        run = start_run(request.out, kind=run.kind, config=as_plain(request.config) | {RESOLVED: found})
    secret = audit_secret(run, request.config.defense_seed, draw=not plan_only)
    plan = plan_shadows(settings, data, network_digest=network_digest, secret_name=secret.name)
    return Prepared(run, request.open_store(), plan, data, secret)


def carry_out_pilot(prepared: Prepared, engine: Engine, *, watch: Watch | None = None) -> None:
    """Do one job of each kind and arm, from which the cost of the rest is known."""
    engine(pilot(prepared.plan), ShadowWork(prepared.plan, prepared.secret.seed), prepared.store, watch=watch)


def carry_out(prepared: Prepared, engine: Engine, *, watch: Watch | None = None) -> dict[str, Any]:
    """Do what is not done yet, and write the results; a run in which jobs failed stays open, to be tried again."""
    if prepared.run.complete:
        return open_run(prepared.run.path).read_json(RESULTS)
    work = ShadowWork(prepared.plan, prepared.secret.seed)
    for _ in range(TRIES):
        outcome = engine(prepared.plan.jobs, work, prepared.store, watch=watch)
        try:
            results = _results(prepared, outcome)
            break
        except Missing as lost:
            # A corrupt result is set aside when it is read, and made again.
            problem = lost
    else:
        raise problem
    with prepared.run.lock():
        return _settled(prepared.run, results, complete=outcome.complete)


def _settled(run: RunDirectory, results: dict[str, Any], *, complete: bool) -> dict[str, Any]:
    """Write the results, unless another process has finished the run meanwhile: then its results."""
    if run.complete:
        return open_run(run.path).read_json(RESULTS)
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
        data=config.data.load_options(),
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


def _results(prepared: Prepared, outcome: Outcome) -> dict[str, Any]:
    plan, config = prepared.plan, prepared.run.config()
    stages = stages_of(plan.jobs, prepared.store, outcome, found=True)
    device = torch.cuda.get_device_name() if plan.settings.device.startswith("cuda") else "CPU"
    found = shadow_results(plan, prepared.store)
    found["audited"] |= {
        "data": prepared.data.name,
        "model": plan.settings.network_file or plan.settings.network,
        "classes": list(prepared.data.classes),
    }
    results = found | {
        "date": now(),
        **jobs_account(outcome, stages, told=lambda key: str(plan.tasks[key.digest])),
        "notes": _notes(config),
        "configuration": {k: v for k, v in config.items() if k != RESOLVED},
        "digests": {"data": prepared.data.digest, "results": results_digest(found)},
        "versions": versions(),
        "hardware": machine_account(device),
    }
    Shadow.model_validate(results)  # what is written is what readers take
    return results


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
