"""Images a second by searching for many targets at once, against one after another: ratios in one run.

`python benchmarks/reconstruction_speed.py [--device cuda --targets 30]`. ResNet-18 with the CIFAR stem on random
32x32 images, one step of ascent on one example each, inversion by cosine. Both ways run the same search, on a GPU as a
captured graph; what is timed are its steps, without reading the difference and capturing. "naive loop" is the plain way
to write it: one target, `torch.autograd.grad` twice, eager. `--breaching FOLDER`, the source of that package, adds its
inversion (Geiping et al.) of the same target by the same number of signed steps.
"""

from __future__ import annotations

import argparse
import sys
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from statistics import median
from time import process_time as clock
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from warp_unlearning.attacks.reconstruction.reconstruct import reconstruct
from warp_unlearning.attacks.reconstruction.search import Search, total_variation
from warp_unlearning.attacks.reconstruction.threat import Threat
from warp_unlearning.data.preprocess import Pixels
from warp_unlearning.models.networks import build_model, suggest_options

PIXELS = Pixels((3, 32, 32), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def stepped(model: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
    after = deepcopy(model)
    gradients = torch.autograd.grad(F.cross_entropy(after(x), y), list(after.parameters()))
    with torch.no_grad():
        for p, g in zip(after.parameters(), gradients, strict=True):
            p.add_(g, alpha=0.1)
    return after


def seconds(threats: list[Threat], iterations: int) -> float:
    """For so many steps of all targets; reading and capturing are taken off by a run of one step."""
    found = []
    for steps in (1, iterations):
        _wait(threats)
        began = clock()
        reconstruct(threats, search=Search(restarts=1, iterations=steps), at_once=len(threats))
        _wait(threats)
        found.append(clock() - began)
    return (found[1] - found[0]) * iterations / (iterations - 1)


def naive_seconds(threat: Threat, iterations: int) -> float:
    model, parameters = threat.original, list(threat.original.parameters())
    target = [b.detach() - a.detach() for a, b in zip(parameters, threat.unlearned.parameters(), strict=True)]
    image = torch.full((1, *PIXELS.shape), 0.5, device=threat.device, requires_grad=True)
    optimiser = torch.optim.Adam([image], lr=0.05)
    labels = threat.labels
    assert labels is not None
    _wait([threat])
    began = clock()
    for _ in range(iterations):
        loss = F.cross_entropy(model(PIXELS.inputs(image)), labels)
        found = torch.autograd.grad(loss, parameters, create_graph=True)
        dot = torch.stack([(a * b).sum() for a, b in zip(found, target, strict=True)]).sum()
        own = torch.stack([a.square().sum() for a in found]).sum().sqrt()
        theirs = torch.stack([b.square().sum() for b in target]).sum().sqrt()
        total = 1 - dot / (own * theirs) + 0.01 * total_variation(image).sum()
        (image.grad,) = torch.autograd.grad(total, image)
        image.grad.sign_()
        optimiser.step()
        with torch.no_grad():
            image.clamp_(0, 1)
    _wait([threat])
    return clock() - began


def breaching_seconds(threat: Threat, iterations: int, folder: Path) -> float:
    """What its own data code imports is replaced by empty packages, and none of it runs."""
    for name in ("breaching", "breaching.cases", "breaching.cases.models"):
        package = ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules.setdefault(name, package)
    attacks = import_module("breaching.attacks")
    names = ("objective", "restarts", "optim", "regularization", "impl", "total_variation")
    values: dict[str, Any] = {
        "objective": {"type": "cosine-similarity", "scale": 1.0},
        "restarts": {"num_trials": 1, "scoring": "cosine-similarity"},
        "optim": {
            **{"optimizer": "adam", "signed": "hard", "step_size": 0.1, "boxed": True, "max_iterations": iterations},
            **{"step_size_decay": "step-lr", "callback": 10**9, "langevin_noise": 0.0, "warmup": 0, "grad_clip": None},
        },
        "regularization": {"total_variation": {"scale": 0.01, "inner_exp": 1, "outer_exp": 1}},
        "impl": {"dtype": "float", "mixed_precision": False, "JIT": None},
    }
    settings = Settings({name: Settings(values[name]) for name in names if name in values})
    settings.update(attack_type="optimization", type="invertinggradients", init="randn", normalize_gradients=False)
    settings.update(augmentations=None, differentiable_augmentations=False)
    setup = {"device": threat.device, "dtype": torch.float}
    attacker = attacks.prepare_attack(threat.original, nn.CrossEntropyLoss(), settings, setup)
    before, after = (list(model.parameters()) for model in (threat.original, threat.unlearned))
    pixels = threat.pixels
    about = {"shape": pixels.shape, "modality": "vision", "mean": pixels.mean, "std": pixels.std}
    buffers = list(threat.original.buffers())
    payload = {"parameters": before, "buffers": buffers, "metadata": Settings(about)}
    known = {"labels": threat.labels, "num_data_points": 1, "local_hyperparams": None}
    shared = {
        "gradients": [(b - a).detach() for a, b in zip(before, after, strict=True)],
        "buffers": buffers,
        "metadata": known,
    }
    _wait([threat])
    began = clock()
    attacker.reconstruct([payload], [shared], {})
    _wait([threat])
    return clock() - began


class Settings(dict[str, Any]):
    """A mapping whose items are attributes too."""

    __getattr__ = dict.__getitem__


def _wait(threats: list[Threat]) -> None:
    if threats[0].device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--targets", type=int, default=30)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--breaching", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    shape = suggest_options(options.model, PIXELS.shape, 10)
    model = build_model(options.model, generator=generator, **shape).to(options.device).eval()
    x = torch.rand(options.targets, 3, 32, 32, generator=generator).to(options.device)
    y = torch.randint(0, 10, (options.targets,), generator=generator).to(options.device)
    threats = [
        Threat(model, stepped(model, PIXELS.inputs(x[i : i + 1]), y[i : i + 1]), PIXELS, y[i : i + 1])
        for i in range(options.targets)
    ]
    naive_seconds(threats[0], 3)
    times: dict[str, list[float]] = {"at once": [], "one after another": [], "naive loop": []}
    for _ in range(options.repetitions):
        times["at once"].append(seconds(threats, options.iterations) / options.targets)
        times["one after another"].append(seconds(threats[:1], options.iterations))
        times["naive loop"].append(naive_seconds(threats[0], options.iterations))
        if options.breaching is not None:
            several = [breaching_seconds(threats[0], steps, options.breaching) for steps in (1, options.iterations)]
            seconds_each = (several[1] - several[0]) * options.iterations / (options.iterations - 1)
            times.setdefault("breaching", []).append(seconds_each)
    base = median(times["at once"])
    if "breaching" in times:
        pairs = zip(times["one after another"], times["breaching"], strict=True)
        ratios = sorted(ours / theirs for ours, theirs in pairs)
        print(f"one after another / breaching: {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    print(f"{options.model}, {options.targets} targets, {options.device}, torch {torch.__version__}; at once is 1")
    for name, found in times.items():
        ratios = sorted(t / b for t, b in zip(found, times["at once"], strict=True))
        print(
            f"{name}: {median(found) / base:.1f} (pairs {ratios[0]:.1f} to {ratios[-1]:.1f}), "
            f"{1000 * median(found) / options.iterations:.2f} ms a step and image"
        )


if __name__ == "__main__":
    main()
