"""The networks of `tracked_null_space.py`: `python benchmarks/tracked_states.py CIFAR10 FOLDER [--seed 0]`, on a GPU.

Trains ResNet-18 with the CIFAR stem for 30 epochs on 25,000 images of CIFAR-10 in a random order, and forgets the first
2,500 of them by `ngp` at its published settings. Leaves base, after10 and after40.safetensors, and images.npy: the
25,000 as they are stored, in that order.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from warp_unlearning.data.cifar10 import MEAN, STD
from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.data.load import load_data
from warp_unlearning.methods import make_method
from warp_unlearning.methods.protocol import Task
from warp_unlearning.models.reinitialise import reinitialise
from warp_unlearning.models.resnet18 import ResNet18
from warp_unlearning.models.weights import save_weights
from warp_unlearning.randomness import Streams
from warp_unlearning.training.recipe import RECIPES
from warp_unlearning.training.repeated import Repeater
from warp_unlearning.training.scoring import accuracy
from warp_unlearning.training.training import Training, run_training
from warp_unlearning.unlearning.driver import drive, working_copy

IMAGES, FORGOTTEN, EPOCHS = 25_000, 2_500, 30
STATES = (10, 40)


def train(examples: TensorExamples, fill: tuple[float, ...], seed: int) -> nn.Module:
    model = ResNet18(classes=10, stem="cifar")
    reinitialise(model, generator=Streams(seed).generator("weights"))
    recipe = replace(RECIPES["paper"], epochs=EPOCHS)
    repeater = Repeater(examples.y.device, recipe.precision, capture=True)
    streams = Streams(seed, "training")
    run_training(Training(model.cuda(), examples, recipe=recipe, streams=streams, fill=fill, repeater=repeater))
    return model


def forget(original: nn.Module, examples: TensorExamples, seed: int, folder: Path) -> None:
    """Save the network after each of the states."""
    device = examples.y.device
    index = torch.arange(len(examples))
    model = working_copy(original, device)
    task = Task(
        forget=examples.select(index[:FORGOTTEN]),
        retain=examples.select(index[FORGOTTEN:]),
        validation=None,
        original=working_copy(original, device).requires_grad_(False).eval(),
        classes=10,
        streams=Streams(seed, "unlearning"),
    )
    steps = drive(model, task, make_method("ngp"), secret=Streams.secret(0))
    for count, _ in enumerate(steps, 1):
        if count in STATES:
            save_weights(folder / f"after{count}.safetensors", model)
        if count == max(STATES):
            break


def stored(examples: TensorExamples) -> np.ndarray:
    """The images as 8-bit numbers, (n, h, w, 3)."""
    mean, deviation = (torch.tensor(each).reshape(3, 1, 1) for each in (MEAN, STD))
    pixels = (examples.x.cpu() * deviation + mean) * 255
    return pixels.round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    data = load_data("cifar10", path=options.data)
    order = torch.randperm(len(data.train), generator=Streams(options.seed).generator("order"))
    examples = data.train.select(order[:IMAGES]).to("cuda")
    original = train(examples, data.fill, options.seed)
    print(f"test accuracy {accuracy(original, data.test.to('cuda')):.4f}", flush=True)
    save_weights(options.folder / "base.safetensors", original)
    forget(original, examples, options.seed, options.folder)
    np.save(options.folder / "images.npy", stored(examples))


if __name__ == "__main__":
    main()
