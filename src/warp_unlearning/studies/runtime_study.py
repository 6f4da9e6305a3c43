"""What a defence costs: seconds of one unlearning by every method alone, with each defence.

| kind | what it leaves | needs |
|---|---|---|
| original | weights of the first shadow, the same as in every other study of the seed | |
| runtime | seconds and teleports of the first forget set, unlearned again and again by one arm | original |

Every run does the same work from the same draws, so that runs differ by the machine alone; the first, in which kernels
are chosen and memory is found, is not counted. The machine is part of a key: rows of one table are of one machine.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from ..data.files import array_digest, to_json
from ..data.preprocess import load_data
from ..errors import DivergedError, InputError
from ..models.modes import choose_device
from ..models.weights import model_digest
from ..runs.jobs import Job, Steps, finished
from ..runs.keys import Key
from ..runs.store import Store
from ..stats.intervals import mean
from ..unlearning.driver import Driven, working_copy
from .cell_plan import Cell, CellPlan, plan_cells
from .cell_settings import CellSettings, StudyArm
from .cell_work import ABOUT, CellWork
from .planned import Planned
from .study import Asked, study_settings

SCHEMA_VERSION = 1
KIND, VERSION = "runtime", 1
RUNS = 5


def plan_runtime(asked: Asked, size_name: str, *, runs: int = RUNS, defense_seed: int = 0) -> Planned:
    """The study at a size, each arm timed so many times after one that is not counted."""
    if runs < 2:
        raise InputError(f"{runs} timed runs have no interval; ask for at least 2")
    plan = timed_plan(_settings(asked, size_name), runs=runs, defense_seed=defense_seed)
    return Planned(
        plan.to_do,
        RuntimeWork(plan, defense_seed, runs=runs),
        partial(_told, plan),
        partial(runtime_results, plan),
        alone=True,
        said=(f"Each arm was run {runs} times on the same forget set after one run that is not counted.",),
    )


def _settings(asked: Asked, size_name: str) -> CellSettings:
    # Shadows come in pairs, and the first is timed.
    return study_settings("fastwarp", size_name, replace(asked, shadows=2, forget_sets=1, pairs=0))


def timed_plan(settings: CellSettings, *, runs: int, defense_seed: int) -> CellPlan:
    """The original of the first shadow, and a job for every arm."""
    data = load_data(**settings.data)
    cells = plan_cells(settings, data, defense_seed=defense_seed)
    start = Cell("original", 0)
    original = next(job for job in cells.jobs if job.key == cells.key(start))
    tasks, jobs = {original.key.digest: start}, [original]
    for arm in settings.arms:
        about = {
            "data": data.digest,
            "forget": array_digest(cells.forgotten(0, 0)),
            "retain": array_digest(cells.retained(0, 0)),
            "validation": array_digest(cells.division.validation),
            "arm": arm.ingredients,
            "seed": settings.seed,
            "defense_seed": defense_seed if arm.defense is not None else None,
            "runs": runs,
            "machine": machine(settings.device),
            "needs": [original.key.digest],
        }
        job = Job(Key(KIND, VERSION, to_json(about)), (original.key,), cost=2.0 * runs)
        tasks[job.key.digest] = Cell(KIND, 0, 0, arm.name)
        jobs.append(job)
    return replace(cells, jobs=tuple(jobs), cells=tasks)


def machine(device: str) -> str:
    """What the times are of: the name of the GPU, or of the processor, and the version of torch."""
    place = choose_device(device)
    name = torch.cuda.get_device_name(place) if place.type == "cuda" else _processor()
    return f"{name}, torch {torch.__version__}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(named), platform.processor() or platform.machine())


@dataclass(frozen=True, eq=False)
class RuntimeWork(CellWork):
    """Trains the original and times the arms."""

    runs: int = RUNS

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "runs": self.runs}

    def _runtime(self, cell: Cell, store: Store) -> Steps:
        arm = next(arm for arm in self.plan.settings.arms if arm.name == cell.arm)
        original = self._model(cell.shadow, store)
        yield None
        seconds: list[float] = []
        made: list[dict[str, Any]] = []
        for run in range(self.runs + 1):
            model, task = working_copy(original, self._place.device), self._task(original, cell)
            self._wait()
            began = perf_counter()
            try:
                driven = finished(self._unlearn(model, task, arm, cell))
            except DivergedError as error:
                return {ABOUT: json.dumps({"diverged": str(error)}).encode()}
            self._wait()
            if run:
                seconds.append(perf_counter() - began)
                made.append(_teleports(driven))
        about = {
            "seconds": seconds,
            "teleports": made,
            "updates": len(driven.history),
            "original": model_digest(original),
            "machine": machine(self.plan.settings.device),
        }
        return {ABOUT: json.dumps(to_json(about), sort_keys=True).encode()}

    def _wait(self) -> None:
        """Until the device has done what it was given."""
        if self._place.device.type == "cuda":
            torch.cuda.synchronize(self._place.device)


def runtime_results(plan: CellPlan, store: Store) -> dict[str, Any]:
    """A row for every arm that was timed; arms that diverged or are not timed yet are said to be so."""
    told = {
        cell.arm: json.loads(store.read(job.key).read(ABOUT))
        for job in plan.jobs
        if (cell := plan.cells[job.key.digest]).kind == KIND and store.has(job.key)
    }
    arms = plan.settings.arms
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "study",
        "study": "runtime",
        "rows": [to_json(_row(arm, told[arm.name])) for arm in arms if "seconds" in told.get(arm.name, {})],
        "missing": [arm.name for arm in arms if arm.name not in told],
        "diverged": {arm.name: told[arm.name]["diverged"] for arm in arms if "diverged" in told.get(arm.name, {})},
    }


def _row(arm: StudyArm, about: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "method": arm.method,
        "defense": arm.shown_defense,
        "seconds": asdict(mean(about["seconds"])),
        "runs": len(about["seconds"]),
        "each": about["seconds"],
        "updates": about["updates"],
        "teleports": _summed(about["teleports"]),
        "machine": about["machine"],
    }


def _teleports(driven: Driven) -> dict[str, Any]:
    made = driven.teleports
    return {"seconds": [c.seconds for c in made], "taken_back": sum(c.scale == 0 for c in made)}


def _summed(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Of one unlearning: how many teleports, how many were taken back, the seconds of all of them, and of one: the
    median of those after the first, which is not tracked from another. Of every run those of each.
    """
    if not any(run["seconds"] for run in runs):
        return None
    later = [second for run in runs for second in run["seconds"][1:]]
    return {
        "count": sum(len(run["seconds"]) for run in runs) / len(runs),
        "taken_back": sum(run["taken_back"] for run in runs) / len(runs),
        "seconds": asdict(mean([sum(run["seconds"]) for run in runs])),
        "later_median": median(later) if later else None,
        "each": [list(run["seconds"]) for run in runs],
    }


def _told(plan: CellPlan, key: Key) -> str:
    cell = plan.cells[key.digest]
    return f"time of {cell.arm}" if cell.kind == KIND else str(cell)
