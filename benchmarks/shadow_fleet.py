"""The shadow models of a study, whole: `python benchmarks/shadow_fleet.py CIFAR --processes 10 --at-once 2`.

Trains the originals of `--models` shadows of `table1` by the engine of `warp reproduce`, from shadow `--from` on, into
the store of the study, which goes on from them. The time is that of the whole run, processes that start and compile
included. Before it, in the same run: updates of the plain loop, of one model at a time with torch's own layers,
captured, and of one model in the form that the fleet has (`studies/training_speed.py`). Several processes share a GPU
by NVIDIA's MPS (`nvidia-cuda-mps-control -d`). Test accuracies are those of the stored weights.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from warp_unlearning.data.preprocess import ImageData, load_data
from warp_unlearning.models.networks import build_model, suggest_options
from warp_unlearning.runs.jobs import Job
from warp_unlearning.runs.store import Store
from warp_unlearning.stats.intervals import mean
from warp_unlearning.studies.cell_plan import Cell, CellPlan, plan_cells
from warp_unlearning.studies.cell_settings import CellSettings
from warp_unlearning.studies.cell_work import ABOUT, CellWork
from warp_unlearning.studies.study import Asked, study_settings
from warp_unlearning.studies.training_speed import Speed, Workload, training_speeds
from warp_unlearning.training.training import Recipe
from warp_unlearning.workflows.engines import ChosenEngine, choose_study_engine


def main() -> None:
    """Measure and print."""
    options = parsed()
    last = options.first + options.models
    size = "paper" if options.device.startswith("cuda") else "small"
    asked = Asked(device=options.device, data_path=options.data, shadows=last, pairs=0, defenses=("none", "warp"))
    settings = study_settings("table1", size, asked)
    data = load_data(**settings.data)
    plan = plan_cells(settings, data, defense_seed=0)
    speeds = single_speeds(plan, data, settings, options)
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(torch.device(options.device)) if size == "paper" else "CPU",
        "torch": torch.__version__,
        "speeds": [asdict(speed) for speed in speeds],
    }
    shadows = range(options.first, last)
    chosen = choose_study_engine(options.device, at_once=options.at_once, processes=options.processes)
    store = Store(options.store)
    seconds = trained(plan, chosen, store, shadows)
    accuracies = tested(plan, chosen, store, shadows)
    each = seconds / options.models
    found["fleet"] = {
        "models": options.models,
        "at_once": chosen.workers,
        "seconds": seconds,
        "accuracies": accuracies,
        "times": {speed.name: speed.seconds_a_model / each for speed in speeds},
    }
    options.out.write_text(json.dumps(found, indent=1))
    print(f"{options.models} models in {seconds:.1f} s, {each:.2f} s each, test accuracy {mean(accuracies)}")
    for speed in speeds:
        print(
            f"{speed.name}: {speed.seconds_a_model:.1f} s a model, {speed.seconds_a_model / each:.2f} times the fleet's"
        )


def parsed() -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", help="the folder of CIFAR-10; digits without a GPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", type=int, default=64)
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first shadow")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--at-once", type=int, help="models of a process")
    parser.add_argument("--plain-updates", type=int, default=60)
    parser.add_argument("--workers", type=int, default=8, help="processes of the plain loop's loader")
    parser.add_argument("--store", type=Path, default=Path("store"))
    parser.add_argument("--out", type=Path, default=Path("shadow_fleet.json"))
    return parser.parse_args()


def single_speeds(plan: CellPlan, data: ImageData, settings: CellSettings, options: argparse.Namespace) -> list[Speed]:
    """The plain loop and one model at a time, on what the first shadow trains on."""
    chosen = {**suggest_options(settings.network, data.shape, len(data.classes)), **settings.network_options}

    def network(seed: int) -> torch.nn.Module:
        generator = torch.Generator().manual_seed(seed)
        return build_model(settings.network, generator=generator, **chosen)

    points = data.train.select(torch.from_numpy(plan.trained(options.first))).to(torch.device(options.device))
    work = Workload(network, points, Recipe(**settings.training), data.fill)
    return training_speeds(work, at_once=[1], workers=options.workers, plain_updates=options.plain_updates)


def trained(plan: CellPlan, chosen: ChosenEngine, store: Store, shadows: range) -> float:
    """Seconds in which the originals of the shadows come into the store, which has none of them."""
    jobs = jobs_of(plan, "original", shadows)
    there = [str(plan.cells[job.key.digest]) for job in jobs if store.has(job.key)]
    if there:
        raise SystemExit(f"{store.root} has {there[0]}; what is there is not trained: give another --from or --store")
    began = perf_counter()
    outcome = chosen.engine(jobs, CellWork(plan, 0), store)
    if not outcome.complete:
        raise SystemExit(f"not all were trained: {outcome}")
    return perf_counter() - began


def tested(plan: CellPlan, chosen: ChosenEngine, store: Store, shadows: range) -> list[float]:
    """Test accuracies of the originals, which is a job of the study too."""
    jobs = jobs_of(plan, "scores", shadows)
    outcome = chosen.engine(jobs, CellWork(plan, 0), store)
    if not outcome.complete:
        raise SystemExit(f"not all were tested: {outcome}")
    return [float(json.loads(store.read(job.key).read(ABOUT))["accuracy"]["test"]) for job in jobs]


def jobs_of(plan: CellPlan, kind: str, shadows: range) -> list[Job]:
    """Jobs of one kind, without what they need, which is there."""
    keys = {plan.key(Cell(kind, shadow)) for shadow in shadows}
    return [Job(job.key, cost=job.cost) for job in plan.jobs if job.key in keys]


if __name__ == "__main__":
    main()
