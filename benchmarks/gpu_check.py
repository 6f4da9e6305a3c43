"""Whether captured work is right on this GPU, and what it takes beside another version:
`python benchmarks/gpu_check.py --beside OTHER/src --out gpu_check`.

First a training and the updates of each method, captured and one operation after another, in float64: both must end
with the same weights. Then the seconds of:

- `fleet`: a model by the paper's recipe (ResNet-18 with the ImageNet stem), 8 of them side by side;
- `move warp`, `move fastwarp`: one move of the null space (`teleports.py`);
- `energy cifar`, `energy imagenet`: energies of 256 examples and their gradient, as one captured graph.

Each version works in a process of its own (`interleaved.py`). Writes OUT.json with all runs and OUT.txt with what is
printed. `--device cpu` is a trial of the script: nothing is captured there.
"""

from __future__ import annotations

import argparse
import json
import sys
from copy import deepcopy
from pathlib import Path

import torch
from interleaved import HERE, Work, add_arguments, known, measure, show, sources, workers
from teleports import move, problem
from torch import nn

WORKS = ("fleet", "move warp", "move fastwarp", "energy cifar", "energy imagenet")
METHODS = ("ngp", "scrub", "salun", "pgu", "bad_teacher", "srf_on")


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
    made = known("gradients.energy:EnergyGradient", "gradients.energy_gradient:EnergyGradient")
    gradient = made(model) if made.__name__ == "EnergyGradient" else made(model, x, y)
    if hasattr(gradient, "capture"):
        gradient.capture()
    for _ in range(3):
        gradient(x, y)
    return lambda: gradient(x, y)


def prepare(options: argparse.Namespace, work: str) -> Work:
    kind, _, name = work.partition(" ")
    given = problem(options) if kind == "move" else options
    return {"fleet": fleet, "move": move, "energy": energy}[kind](given, name)


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def difference(name: str, device: torch.device) -> float:
    """How far captured weights end from plain ones, as a share of how far those were moved."""
    given = known("conformance.problem:noise_problem")()
    sets = [part.to(device) for part in (given.forget, given.retain, given.validation)]
    ends = [flat(given.original).to(device)]
    for capture in (False, True):
        original, model = (deepcopy(given.original).to(device) for _ in range(2))
        compute = known("gpu.graphs:Compute")(device, capture=capture)
        streams = known("randomness:Streams")(0)
        if name == "training":
            recipe = known("training.training:Recipe")(epochs=4, batch_size=12, crop_padding=1, flip=True)
            start = known("training.training:Training")
            updates = start(model, sets[1], recipe=recipe, streams=streams, compute=compute).updates()
        else:
            make_task = known("methods.base:Task", "methods.protocol:Task")
            task = make_task(*sets, original.requires_grad_(False).eval(), 3, streams, compute)
            method = known("methods.registry:small_data_method", "methods.recipes:small_data_method")(name)
            updates = method.updates(model.train(method.norm_mode == "train"), task)
        for _ in updates:
            pass
        ends.append(flat(model))
    start, plain, captured = ends
    return float((plain - captured).norm() / (plain - start).norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--works", nargs="*", default=WORKS)
    parser.add_argument("--images", type=int, default=23750, help="that a model of the fleet is trained on")
    parser.set_defaults(device="cuda", runs=9, out=Path("gpu_check"), network="resnet18", retain=2048, forget=256)
    options = parser.parse_args()
    sys.path.insert(0, str(HERE))
    apart = {name: difference(name, torch.device(options.device)) for name in ("training", *METHODS)}
    lines = [f"{name}: captured weights end {share:.1e} of the way from plain ones" for name, share in apart.items()]
    print(*lines, sep="\n", flush=True)
    taken = {}
    with workers(sources(options), prepare, options) as pipes:
        for work in options.works:
            taken[work] = measure(pipes, dict.fromkeys(pipes, work), options)
            lines.append(show(work, taken[work]))
            options.out.with_suffix(".txt").write_text("\n".join(lines) + "\n")
            options.out.with_suffix(".json").write_text(json.dumps({"differences": apart, "runs": taken}, indent=1))
    sys.exit(max(apart.values()) > 1e-3)


if __name__ == "__main__":
    main()
