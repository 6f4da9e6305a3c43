"""How many models a GPU trains in a minute: `python benchmarks/fleet.py --device cuda --at-once 1 8 16`.

ResNet-18 with the ImageNet stem on 23,750 images of 32x32, batch 256, crop and flip: the recipe of the paper, of which
one epoch is timed after a first one, and the time of all 91 is computed from it, beside a plain loop in the same run
(`studies/training_speed.py`). With --models and --data FILE.npz (`train_x`, `train_y`, `test_x`, `test_y`, uint8 images
in rows) whole models are trained, each on its half of the images, and their test accuracies reported. Without --data
images are random, which changes no time. With --references the first so many models are trained again in float32 with
torch's own layers, and the difference in test accuracy is given, model by model: weights at the start and batches are
the same.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.models.networks import build_model
from warp_unlearning.stats.intervals import mean
from warp_unlearning.studies.training_speed import Workload, train_fleet, training_speeds
from warp_unlearning.training.training import RECIPES, Recipe

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
FILL = tuple(-m / s for m, s in zip(MEAN, STD, strict=True))
HALF = 23750


def network(seed: int) -> nn.Module:
    """One model by seed."""
    return build_model("resnet18", generator=torch.Generator().manual_seed(seed), stem="imagenet")


def load(path: Path | None, device: torch.device) -> tuple[TensorExamples, TensorExamples]:
    """Normalised training and test images on the device."""
    if path is None:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(HALF, 3, 32, 32, generator=generator)
        whole = TensorExamples(x, torch.randint(0, 10, (HALF,), generator=generator)).to(device)
        return whole, whole.select(torch.arange(1000))
    with np.load(path) as file:
        parts = [
            TensorExamples(_normalised(file[f"{part}_x"]), torch.from_numpy(file[f"{part}_y"].astype(np.int64)))
            for part in ("train", "test")
        ]
    return parts[0].to(device), parts[1].to(device)


def _normalised(images: np.ndarray[Any, Any]) -> Tensor:
    x = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))).float().div_(255)
    return x.sub_(torch.tensor(MEAN)[:, None, None]).div_(torch.tensor(STD)[:, None, None])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--plain-updates", type=int, default=60)
    parser.add_argument("--workers", type=int, default=8, help="processes of the plain loop's loader")
    parser.add_argument("--models", type=int, default=0, help="whole models to train as well")
    parser.add_argument("--references", type=int, default=0, help="models to train in float32 as well")
    parser.add_argument("--epochs", type=int, default=RECIPES["paper"].epochs)
    parser.add_argument("--out", type=Path, default=Path("fleet.json"))
    options = parser.parse_args()
    device = torch.device(options.device)
    examples, test = load(options.data, device)
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(0))
    recipe = Recipe(**{**vars(RECIPES["paper"]), "epochs": options.epochs})
    work = Workload(network, examples.select(order[:HALF]), recipe, FILL)
    speeds = training_speeds(
        work, at_once=options.at_once, workers=options.workers, plain_updates=options.plain_updates
    )
    for speed in speeds:
        faster = speeds[0].seconds_an_update / speed.seconds_an_update
        print(
            f"{speed.name}: {1e3 * speed.seconds_an_update:.3f} ms an update, {speed.seconds_a_model:.1f} s a model, "
            f"{faster:.2f} times the plain loop, {100 * speed.utilisation:.1f} % of the matrix rate",
            flush=True,
        )
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "torch": torch.__version__,
        "speeds": [asdict(speed) for speed in speeds],
    }
    options.out.write_text(json.dumps(found, indent=1))
    if options.models:
        trained = train_fleet(work, test, count=options.models, at_once=max(options.at_once))
        found["trained"] = {"models": options.models, "at_once": max(options.at_once), **asdict(trained)}
        options.out.write_text(json.dumps(found, indent=1))
        print(
            f"{options.models} models in {trained.seconds:.1f} s, {trained.seconds / options.models:.2f} s each, test "
            f"accuracy {mean(trained.accuracies)}",
            flush=True,
        )
        if options.references:
            found["float32"] = reference(work, test, trained.accuracies[: options.references], max(options.at_once))
            options.out.write_text(json.dumps(found, indent=1))


def reference(work: Workload, test: TensorExamples, others: Sequence[float], at_once: int) -> dict[str, Any]:
    """Test accuracies of the same models in float32 by torch's own layers, and how much larger `others` are."""
    plain = replace(work, recipe=replace(work.recipe, precision="float32"))
    trained = train_fleet(plain, test, count=len(others), at_once=at_once)
    more = mean(np.subtract(others, trained.accuracies))
    print(f"{len(others)} models in float32 in {trained.seconds:.1f} s; the others' accuracy is larger by {more}")
    return asdict(trained) | {"difference": asdict(more)}


if __name__ == "__main__":
    main()
