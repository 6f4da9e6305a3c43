"""A study of the paper as jobs on a store, from which it grows and resumes anywhere: `warp reproduce`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Any

import torch
import yaml

from ..config import ReproduceConfig, as_plain
from ..data.files import write_atomically
from ..errors import InputError, nearest
from ..models.modes import choose_device
from ..report.paper_tables import render
from ..runs.directory import CONFIG, LOCK, MANIFEST, RunDirectory, dump_yaml, load_yaml, open_run
from ..runs.drain import Engine, Outcome, Watch
from ..runs.jobs import Job
from ..runs.progress import stages_of
from ..runs.store import Missing, Store
from ..studies.planned import Planned
from ..studies.study import NEEDS_DATA
from ..unlearning.record import now, versions
from .job_request import STORE, JobRequest
from .run_account import jobs_account, machine_account
from .study_cost import require_gpu
from .study_plans import plan_study, study_names

RESULTS, TABLE, FIGURES = "results.json", "table.md", "figures"
# Results that are damaged when they are read are made again so often.
TRIES = 3


@dataclass(frozen=True)
class ReproduceRequest(JobRequest[ReproduceConfig]):
    """Which study; studies that share a store have jobs in common. `anyway` does at the size of the paper without a GPU
    what takes days. `only_results` does nothing but read what the store holds, which a device may have made that is not
    here.
    """

    anyway: bool = False
    only_results: bool = False


@dataclass(frozen=True, eq=False)
class PreparedStudy:
    """A study ready to be carried out."""

    out: Path
    store: Store
    planned: Planned
    config: ReproduceConfig


def prepare_study(request: ReproduceRequest) -> PreparedStudy:
    """Read the data, check what is asked for and plan the jobs; nothing is trained or written."""
    if request.config.made_with is not None and not request.only_results:
        raise InputError(f"arms of version {request.config.made_with} can only be read; add --only-results")
    config = _settled(request.config, uses_device=not request.only_results)
    if not request.anyway and not request.only_results:
        require_gpu(config)
    planned = plan_study(config)
    _require_growth(request.out, config)
    return PreparedStudy(request.out, request.open_store(), planned, config)


def carry_out_study(
    prepared: PreparedStudy,
    engine: Engine,
    *,
    budget: float | None = None,
    watch: Watch | None = None,
    command: str = "",
) -> dict[str, Any]:
    """Do what is not done yet, for about `budget` minutes, and write results, table and figures from what is there."""
    run = _open(prepared)
    until = None if budget is None else time() + 60 * budget
    for _ in range(TRIES):
        jobs = prepared.planned.to_do(prepared.store)
        outcome = engine(jobs, prepared.planned.work, prepared.store, watch=watch, until=until)
        try:
            found = prepared.planned.results(prepared.store)
            break
        except Missing as lost:
            # A damaged result is set aside when it is read, and made again.
            problem = lost
    else:
        raise problem
    results = found | _about(prepared, outcome, jobs, command, made_on=found.get("made_on", []))
    with run.lock():
        if run.config() != load_yaml(dump_yaml(as_plain(prepared.config))):
            raise InputError(
                f"{run.path} was started with other settings meanwhile, and is theirs; what was done here is in the "
                "store: start again to have it in the results"
            )
        if run.complete and not outcome.complete:
            return open_run(run.path).read_json(RESULTS)
        _write(run, results, complete=outcome.complete)
    return results


def _write(run: RunDirectory, results: dict[str, Any], *, complete: bool) -> None:
    (run.path / MANIFEST).unlink(missing_ok=True)
    run.write_json(RESULTS, results)
    rendered = render(results, folder=FIGURES)
    write_atomically(run.path / TABLE, rendered.markdown.encode())
    (run.path / FIGURES).mkdir(exist_ok=True)
    for name, figure in rendered.figures.items():
        write_atomically(run.path / FIGURES / name, figure)
    if complete:
        run.finish()


def _about(
    prepared: PreparedStudy, outcome: Outcome, jobs: Sequence[Job], command: str, *, made_on: Sequence[str]
) -> dict[str, Any]:
    gpu = prepared.config.device.startswith("cuda")
    return {
        "date": now(),
        "complete": outcome.complete,
        "left": len(outcome.left),
        **jobs_account(outcome, stages_of(jobs, prepared.store, outcome), told=prepared.planned.told),
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
    return machine_account("CPU")


def _settled(config: ReproduceConfig, *, uses_device: bool) -> ReproduceConfig:
    """With the device and the size that "auto" stands for."""
    if config.study not in study_names():
        raise InputError(f"there is no study {config.study!r}; {nearest(config.study, study_names())}")
    named = config.device != "auto" and not uses_device
    device = config.device if named else str(choose_device(config.device))
    size = config.size
    if size == "auto":
        size = "paper" if device.startswith("cuda") else "small"
    if size in NEEDS_DATA and config.data_path is None:
        raise InputError(f"the size {size} needs {NEEDS_DATA[size]}, or give --size small, which has its data with it")
    return config.model_copy(update={"device": device, "size": size})


def _require_growth(out: Path, config: ReproduceConfig) -> None:
    """Refuse to write over files that are no study's, the table of another study, or arms and shadows that this one
    leaves out.
    """
    # Results may have been merged into its store before it is begun here.
    others = [each for each in out.iterdir() if each.name not in (STORE, LOCK)] if out.is_dir() else []
    if not others:
        return
    if not (out / CONFIG).is_file():
        raise InputError(f"{out} holds files and no study; give another folder with --out")
    old, new = _configuration_in(out), as_plain(config)
    for name in ("study", "size", "seed"):
        if name in old and old[name] != new[name]:
            raise InputError(f"{out} holds a study with {name} {old[name]}, not {new[name]}; give another --out")
    for name in ("methods", "defenses"):
        left_out = [] if None in (old.get(name), new[name]) else [each for each in old[name] if each not in new[name]]
        if left_out:
            raise InputError(f"{out} holds results of {name} that are left out here, {left_out[0]}; give another --out")
    if None not in (old.get("shadows"), new["shadows"]) and old["shadows"] > new["shadows"]:
        raise InputError(f"{out} holds a study of {old['shadows']} shadows, not {new['shadows']}; give another --out")


def _configuration_in(out: Path) -> dict[str, Any]:
    try:
        found = load_yaml((out / CONFIG).read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{out / CONFIG} is damaged: {str(error).splitlines()[0]}; give another --out") from error
    if not isinstance(found, dict):
        raise InputError(f"{out / CONFIG} holds no settings, so that it is no study's; give another --out")
    return found


def _open(prepared: PreparedStudy) -> RunDirectory:
    """The folder of a study. Another configuration is no other run: the store tells its results apart by their keys, so
    that a study can grow. One that is finished stays so until its results are written again.
    """
    run, text = RunDirectory(prepared.out, "study"), dump_yaml(as_plain(prepared.config)).encode()
    run.path.mkdir(parents=True, exist_ok=True)
    with run.lock():
        _require_growth(run.path, prepared.config)
        if not (run.path / CONFIG).is_file() or (run.path / CONFIG).read_bytes() != text:
            (run.path / MANIFEST).unlink(missing_ok=True)
            write_atomically(run.path / CONFIG, text)
        for name, data in prepared.planned.files.items():
            write_atomically(run.path / name, data)
    return run
