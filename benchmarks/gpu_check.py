"""Whether captured work is right on this GPU, and what it takes beside another version:
`python benchmarks/gpu_check.py --beside OTHER/src --out gpu_check`.

A training and the updates of each method, captured and one operation after another in float64, must end with the same
weights. After that the seconds of: `fleet`, a model by the paper's recipe, 8 of them side by side; `move NAME`, one
move of the null space (`teleports.py`); `energy STEM`, energies of 256 examples and their gradient as one graph.

Each version works in a process of its own, in turn; who goes first alternates. OUT.json has all runs, OUT.txt medians
and the median of ratios of neighbouring runs (smallest to largest).
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable
from copy import deepcopy
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from teleports import HERE, known, move, problem
from torch import nn

WORKS = ("fleet", "move warp", "move fastwarp", "energy cifar", "energy imagenet")
UPDATES = ("training", "ngp", "scrub", "salun", "pgu", "bad_teacher", "srf_on")
Work = Callable[[], object]


def images(options: argparse.Namespace, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(count, 3, 32, 32, generator=draw), torch.randint(10, (count,), generator=draw)
    return x.to(options.device), y.to(options.device)


def resnet(stem: str, seed: int = 0) -> nn.Module:
    return known("models.networks:build_model")("resnet18", generator=torch.Generator().manual_seed(seed), stem=stem)


def fleet(options: argparse.Namespace, name: str) -> Work:
    """Gives the seconds itself: an update of one of the models side by side, times the updates of a model."""
    recipe = known("training.training:RECIPES", "training.recipe:RECIPES")["paper"]
    examples = known("data.examples:TensorExamples")(*images(options, options.images))
    work = known("studies.training_speed:Workload")(lambda s: resnet("imagenet", s), examples, recipe, (0.0, 0.0, 0.0))
    seconds = known("studies.training_speed:fleet_update_seconds")
    return lambda: work.updates_a_model * seconds(work, at_once=8, capture=True)


def energy(options: argparse.Namespace, stem: str) -> Work:
    model, (x, y) = resnet(stem).to(options.device).eval(), images(options, 256)
    made = known("gradients.energy_gradient:EnergyGradient", "gradients.captured_energy:CapturedEnergy")
    gradient = made(model) if made.__name__ == "EnergyGradient" else made(model, x, y)
    if hasattr(gradient, "capture"):
        gradient.capture()
    for _ in range(3):
        gradient(x, y)
    return lambda: gradient(x, y)


def serve(source: str, options: argparse.Namespace, pipe: Connection) -> None:
    """Time works with the package in the folder `source`, in a process of its own."""
    sys.path.insert(0, source)
    warnings.simplefilter("ignore")
    wait = torch.cuda.synchronize if options.device == "cuda" else int
    made: dict[str, Work] = {}
    while work := pipe.recv():
        kind, _, name = work.partition(" ")
        if work not in made:
            made.clear()
            given = problem(options) if kind == "move" else options
            made[work] = {"fleet": fleet, "move": move, "energy": energy}[kind](given, name)
        wait()
        began = perf_counter()
        found = made[work]()
        wait()
        pipe.send(found if kind == "fleet" else perf_counter() - began)


def measure(work: str, workers: dict[str, Connection], runs: int) -> dict[str, list[float]]:
    """Seconds by version, after one run that is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in workers}
    for i in range(runs + 1):
        for name in list(workers)[:: 1 if i % 2 == 0 else -1]:
            workers[name].send(work)
            taken[name].append(workers[name].recv())
    return {name: seconds[1:] for name, seconds in taken.items()}


def line(work: str, taken: dict[str, list[float]]) -> str:
    text = f"{work}: " + ", ".join(f"{name} {median(each):.4g} s" for name, each in taken.items())
    ratios = [a / b for a, b in zip(taken["new"], taken.get("other", []), strict=False)]
    ends = f"; new takes {median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}) of the time" if ratios else ""
    return text + ends


def difference(name: str, device: torch.device) -> float:
    """How far captured weights end from plain ones, as a share of how far those were moved."""
    given = known("conformance.problem:noise_problem")()
    sets = [part.to(device) for part in (given.forget, given.retain, given.validation)]
    ends = [nn.utils.parameters_to_vector(given.original.parameters()).detach().to(device)]
    for capture in (False, True):
        original, model = (deepcopy(given.original).to(device) for _ in range(2))
        compute, streams = known("gpu.graphs:Compute")(device, capture=capture), known("randomness:Streams")(0)
        if name == "training":
            recipe = known("training.training:Recipe")(epochs=4, batch_size=12, crop_padding=1, flip=True)
            options = {"recipe": recipe, "streams": streams, "compute": compute}
            updates = known("training.training:Training")(model, sets[1], **options).updates()
        else:
            make_task = known("methods.base:Task", "methods.protocol:Task")
            task = make_task(*sets, original.requires_grad_(False).eval(), 3, streams, compute)
            method = known("methods.registry:small_data_method", "methods.recipes:small_data_method")(name)
            updates = method.updates(model.train(method.norm_mode == "train"), task)
        for _ in updates:
            pass
        ends.append(nn.utils.parameters_to_vector(model.parameters()).detach())
    start, plain, captured = ends
    return float((plain - captured).norm() / (plain - start).norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=Path, help="the folder `src` of another checkout")
    parser.add_argument("--out", type=Path, default=Path("gpu_check"), help="without an ending")
    parser.add_argument("--works", nargs="*", default=WORKS)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--images", type=int, default=23750, help="that a model of the fleet is trained on")
    parser.add_argument("--device", default="cuda", help="cpu is a trial of the script: nothing is captured there")
    parser.set_defaults(network="resnet18", retain=2048, forget=256)
    options = parser.parse_args()
    sys.path.insert(0, str(HERE))
    apart = {name: difference(name, torch.device(options.device)) for name in UPDATES}
    lines = [f"{name}: captured weights end {share:.1e} of the way from plain ones" for name, share in apart.items()]
    print(*lines, sep="\n", flush=True)
    context, workers, taken = get_context("spawn"), {}, {}
    for name, source in (("new", HERE), ("other", options.beside)):
        if source is not None:
            workers[name], theirs = context.Pipe()
            context.Process(target=serve, args=(str(source.resolve()), options, theirs), daemon=True).start()
    for work in options.works:
        taken[work] = measure(work, workers, options.runs)
        lines.append(line(work, taken[work]))
        print(lines[-1], flush=True)
        options.out.with_suffix(".txt").write_text("\n".join(lines) + "\n")
        options.out.with_suffix(".json").write_text(json.dumps({"differences": apart, "seconds": taken}, indent=1))
    for worker in workers.values():
        worker.send(None)
    sys.exit(max(apart.values()) > 1e-3)


if __name__ == "__main__":
    main()
