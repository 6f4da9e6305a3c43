"""What the defences cost on a GPU: `python benchmarks/defense_cost.py DATA.npz OUT.json [--methods ngp ...]`.

Trains ResNet-18 (CIFAR stem, bf16, channels-last, crop and flip) on the images of an .npz, forgets a random tenth by
each method at its published settings, without a defence and with each, one teleport an epoch, and reports seconds, the
defence's share of the undefended method's time, seconds a teleport, and accuracies. The first teleport of a tracked
basis is an exact one, so its median over the later ones is given beside the mean.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean, median
from time import perf_counter

import torch
from torch import nn

from warp_unlearning import unlearn
from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.data.load import load_data
from warp_unlearning.gradients.energy import gradient_energy
from warp_unlearning.methods import Method, make_method
from warp_unlearning.models.reinitialise import reinitialise
from warp_unlearning.models.resnet18 import ResNet18
from warp_unlearning.randomness import Streams
from warp_unlearning.training.recipe import Recipe
from warp_unlearning.training.scoring import accuracy
from warp_unlearning.training.training import Training, run_training

METHODS = ("ngp", "scrub", "salun", "pgu", "bad_teacher", "srf_on")
DEFENSES = (None, "warp", "fastwarp", "conjugate")


def train(examples: TensorExamples, fill: tuple[float, ...], epochs: int) -> nn.Module:
    model = ResNet18(classes=10)
    reinitialise(model, generator=Streams(0).generator("weights"))
    recipe = Recipe(epochs=epochs, batch_size=256, lr=0.1, crop_padding=4, flip=True)
    run_training(Training(model.cuda(), examples, recipe=recipe, streams=Streams(0, "training"), fill=fill))
    return model


def measure(
    original: nn.Module, method: Method, defense: str | None, sets: dict[str, TensorExamples], test: TensorExamples
) -> dict[str, object]:
    torch.cuda.synchronize()
    began = perf_counter()
    done = unlearn(original, **sets, method=method, defense=defense, defense_seed=0)
    torch.cuda.synchronize()
    seconds = perf_counter() - began
    forget = sets["forget"]
    with torch.no_grad():
        energy = float(gradient_energy(done.model.eval(), forget.x[:256], forget.y[:256]).mean())
    teleports = [c.seconds for c in done.teleports]
    return {
        "seconds": seconds,
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
    options = parser.parse_args()
    data = load_data("npz", path=options.data)
    order = torch.randperm(len(data.train), generator=Streams(0).generator("order"))
    count = len(order) // 10
    cuts = {"validation": order[:count], "forget": order[count : 2 * count], "retain": order[2 * count :]}
    sets = {name: data.train.select(index).to("cuda") for name, index in cuts.items()}
    test = data.test.to("cuda")
    original = train(data.train.select(order[count:]).to("cuda"), data.fill, options.epochs)
    results: dict[str, object] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "examples": {name: len(examples) for name, examples in sets.items()},
        "test accuracy": accuracy(original, test),
    }
    print(json.dumps(results), flush=True)
    # The first run of a kind loads and chooses kernels.
    for defense in ("warp", "fastwarp", "conjugate"):
        measure(original, make_method("bad_teacher"), defense, sets, test)
    for method in options.methods:
        settings = {} if options.method_epochs is None else {"epochs": options.method_epochs}
        made = make_method(method, **settings)
        rows = {str(defense): measure(original, made, defense, sets, test) for defense in DEFENSES}
        base = float(str(rows["None"]["seconds"]))
        for row in rows.values():
            row["extra"] = float(str(row["seconds"])) / base - 1
        results[method] = rows
        print(method, json.dumps(rows), flush=True)
        options.out.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
