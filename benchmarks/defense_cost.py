"""What the defences cost on a GPU: `python benchmarks/defense_cost.py DATA.npz OUT.json [--stem imagenet]
[--certify brief] [--methods ngp ...] [--teleports-only]`.

Trains ResNet-18 (bf16, channels-last, crop and flip) on the images of an .npz. First one teleport by itself, exact and
tracked, from the third of a session on, when bases are tracked and energies are a captured graph: the median of
`--runs` seconds, and of the milliseconds that each part takes between CUDA events. Then a random tenth is forgotten by
each method at its published settings, without a defence and with each, one teleport an epoch: medians of `--runs`
seconds, the defence's share of the undefended method's time, seconds a teleport, and accuracies. The first teleport of
a tracked basis is an exact one, so its median over the later ones is given beside the mean.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import Any
from unittest.mock import patch

import torch
from teleport_operations import PARTS
from torch import nn

from warp_unlearning import unlearn
from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.data.load import load_data
from warp_unlearning.defense import Warp
from warp_unlearning.defense.protocol import Defense
from warp_unlearning.defense.registry import make_defense
from warp_unlearning.gradients.energy import gradient_energy
from warp_unlearning.methods import Method, make_method
from warp_unlearning.methods.protocol import Task
from warp_unlearning.models.reinitialise import reinitialise
from warp_unlearning.models.resnet18 import ResNet18, Stem
from warp_unlearning.randomness import Streams
from warp_unlearning.symmetry.forget_energy import ReplayedEnergy
from warp_unlearning.symmetry.null_space import NullSpace
from warp_unlearning.symmetry.tracked_null_space import TrackedNullSpace
from warp_unlearning.training.recipe import RECIPES
from warp_unlearning.training.repeated import Repeater
from warp_unlearning.training.scoring import accuracy
from warp_unlearning.training.training import Training, run_training

METHODS = ("ngp", "scrub", "salun", "pgu", "bad_teacher", "srf_on")
DEFENSES = (None, "warp", "fastwarp", "conjugate")


# The first decomposes, the second captures the energies, the third and later ones are what a session pays.
BEFORE = 2
REPLAYED = ((ReplayedEnergy, "slopes", "energies"), (ReplayedEnergy, "value", "energies"))


class Parts:
    """Milliseconds of the device's time between the moments at which parts begin and end."""

    def __init__(self) -> None:
        self._running = ["other"]
        self._marks: list[tuple[str, torch.cuda.Event]] = []
        self.entered: Counter[str] = Counter()

    def mark(self) -> None:
        """From here on the innermost part runs."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append((self._running[-1], event))

    @contextmanager
    def within(self, part: str) -> Iterator[None]:
        """Count for this part within the block."""
        self.entered[part] += 1
        self._running.append(part)
        self.mark()
        try:
            yield
        finally:
            self._running.pop()
            self.mark()

    def milliseconds(self) -> dict[str, float]:
        """By part, once the device is done."""
        found: dict[str, float] = defaultdict(float)
        for (part, begin), (_, end) in zip(self._marks, self._marks[1:], strict=False):
            found[part] += begin.elapsed_time(end)
        return dict(found)


@contextmanager
def watched(parts: Parts) -> Iterator[None]:
    """Tell `parts` which part runs."""
    with ExitStack() as stack:
        for owner, name, part in (*PARTS, *REPLAYED):
            given = vars(owner)[name]
            inner = given.__func__ if isinstance(given, classmethod) else given
            call = _wrapped(inner, parts, part)
            stack.enter_context(patch.object(owner, name, classmethod(call) if inner is not given else call))
        yield


def _wrapped(function: Callable[..., Any], parts: Parts, part: str) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        with parts.within(part):
            return function(*args, **named)

    return call


def followed(symmetry: object) -> dict[str, int]:
    """How often bases were built exactly and renewed, and those built last decomposed and grown, up to here; and
    whether a captured graph samples inputs.
    """
    if not isinstance(symmetry, TrackedNullSpace):
        return {}
    bases = symmetry._tracked
    trackers = [tracker for layer in bases._layers.values() for tracker in layer.trackers]
    return {
        "exact": bases.exact_builds,
        "renewed": bases.renewals,
        "decomposed": sum(tracker.decompositions for tracker in trackers),
        "grown": sum(tracker.growths for tracker in trackers),
        "captured": int(symmetry._remembered._sample.captured),
    }


def teleports(
    original: nn.Module, symmetry: NullSpace, sets: dict[str, TensorExamples], options: argparse.Namespace
) -> dict[str, object]:
    """One teleport by itself, `--runs` times in one session."""
    model = deepcopy(original)
    task = Task(**sets, original=deepcopy(original).requires_grad_(False).eval(), classes=10, streams=Streams(0))
    defense = Warp(symmetry, every=1, certify=options.certify)
    session = defense.start(model, task, streams=Streams.secret(0))
    for _ in range(BEFORE):
        session._teleport()
    seconds, parts, entered = [], [], []
    states = [followed(session._teleporter.symmetry)]
    for _ in range(options.runs):
        torch.cuda.synchronize()
        began = perf_counter()
        session._teleport()
        torch.cuda.synchronize()
        seconds.append(perf_counter() - began)
        states.append(followed(session._teleporter.symmetry))
    for _ in range(options.runs):
        watch = Parts()
        with watched(watch):
            watch.mark()
            session._teleport()
            watch.mark()
        torch.cuda.synchronize()
        parts.append(watch.milliseconds())
        entered.append(dict(watch.entered))
        states.append(followed(session._teleporter.symmetry))
    names = dict.fromkeys(name for each in parts for name in each)
    return {
        "seconds": median(seconds),
        "all": seconds,
        "first": [c.seconds for c in session.certificates[:BEFORE]],
        "milliseconds": {name: median(each.get(name, 0.0) for each in parts) for name in names},
        "milliseconds of each": parts,
        "entered": entered,
        "followed": states,
        "scales": [c.scale for c in session.certificates],
        "moved": [c.moved for c in session.certificates],
        "loss_changes": [c.retain.loss_change for c in session.certificates],
    }


def train(examples: TensorExamples, fill: tuple[float, ...], epochs: int, stem: Stem) -> nn.Module:
    model = ResNet18(classes=10, stem=stem)
    reinitialise(model, generator=Streams(0).generator("weights"))
    recipe = replace(RECIPES["paper"], epochs=epochs)
    repeater = Repeater(examples.y.device, recipe.precision, capture=True)
    streams = Streams(0, "training")
    run_training(Training(model.cuda(), examples, recipe=recipe, streams=streams, fill=fill, repeater=repeater))
    return model


def defense_named(name: str | None, certify: str) -> Defense | None:
    if name is None or name == "conjugate":
        return None if name is None else make_defense(name)
    return make_defense(name, certify=certify)


def measure(
    original: nn.Module,
    method: Method,
    defense: Defense | None,
    sets: dict[str, TensorExamples],
    test: TensorExamples,
    *,
    runs: int,
) -> dict[str, object]:
    """Medians over `runs` of seconds; the rest is of the last."""
    seconds = []
    for _ in range(runs):
        torch.cuda.synchronize()
        began = perf_counter()
        done = unlearn(original, **sets, method=method, defense=defense, defense_seed=0)
        torch.cuda.synchronize()
        seconds.append(perf_counter() - began)
    forget = sets["forget"]
    with torch.no_grad():
        energy = float(gradient_energy(done.model.eval(), forget.x[:256], forget.y[:256]).mean())
    teleports = [c.seconds for c in done.teleports]
    return {
        "seconds": median(seconds),
        "all_seconds": seconds,
        "updates": len(done.history),
        "teleports": len(teleports),
        "teleport_mean": mean(teleports) if teleports else None,
        "teleport_later_median": median(teleports[1:]) if len(teleports) > 1 else None,
        "scales": [c.scale for c in done.teleports],
        "retain_loss_change": max((c.retain.loss_change for c in done.teleports), default=None),
        "distance": done.teleports[-1].distance_after if teleports else None,
        "forget_energy": energy,
        "accuracy": {
            n: accuracy(done.model, e) for n, e in (("forget", forget), ("retain", sets["retain"]), ("test", test))
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--method-epochs", type=int, help="instead of the published number, where that is large")
    parser.add_argument("--stem", choices=["cifar", "imagenet"], default="cifar")
    parser.add_argument("--certify", choices=["full", "brief"], default="full")
    parser.add_argument("--runs", type=int, default=5, help="of which medians are taken")
    parser.add_argument("--teleports-only", action="store_true", help="no method, one teleport by itself")
    options = parser.parse_args()
    data = load_data("npz", path=options.data)
    order = torch.randperm(len(data.train), generator=Streams(0).generator("order"))
    count = len(order) // 10
    cuts = {"validation": order[:count], "forget": order[count : 2 * count], "retain": order[2 * count :]}
    sets = {name: data.train.select(index).to("cuda") for name, index in cuts.items()}
    test = data.test.to("cuda")
    original = train(data.train.select(order[count:]).to("cuda"), data.fill, options.epochs, options.stem)
    results: dict[str, object] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "examples": {name: len(examples) for name, examples in sets.items()},
        "test accuracy": accuracy(original, test),
        "stem": options.stem,
        "certify": options.certify,
    }
    print(json.dumps(results), flush=True)
    alone = {"exact": NullSpace(), "tracked": TrackedNullSpace()}
    results["teleport"] = {name: teleports(original, made, sets, options) for name, made in alone.items()}
    print(json.dumps(results["teleport"]), flush=True)
    options.out.write_text(json.dumps(results, indent=2))
    if options.teleports_only:
        return
    # The first run of a kind loads and chooses kernels.
    for defense in ("warp", "fastwarp", "conjugate"):
        measure(original, make_method("bad_teacher"), defense_named(defense, options.certify), sets, test, runs=1)
    for method in options.methods:
        settings = {} if options.method_epochs is None else {"epochs": options.method_epochs}
        made = make_method(method, **settings)
        rows = {}
        for defense in DEFENSES:
            chosen = defense_named(defense, options.certify)
            rows[str(defense)] = measure(original, made, chosen, sets, test, runs=options.runs)
        base = float(str(rows["None"]["seconds"]))
        for row in rows.values():
            row["extra"] = float(str(row["seconds"])) / base - 1
        results[method] = rows
        print(method, json.dumps(rows), flush=True)
        options.out.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
