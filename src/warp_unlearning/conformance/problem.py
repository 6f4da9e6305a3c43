"""Small problems on which the rules for methods are checked: one of noise, in float64, and one of digits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from ..data.examples import TensorExamples
from ..data.preprocess import load_data
from ..models.networks import SmallResNet, build_model
from ..randomness import Streams
from ..training.recipe import Recipe
from ..training.training import Training, run_training


@dataclass(frozen=True, eq=False)
class Problem:
    """A trained model, what to forget and what to keep, and the model retrained without the forget set."""

    original: nn.Module
    retrained: nn.Module
    forget: TensorExamples
    retain: TensorExamples
    validation: TensorExamples


def noise_problem(seed: int = 0) -> Problem:
    """A residual network with batch norm in float64 on 60 noisy images of 3 classes; a second is enough for
    everything.
    """
    streams = Streams(seed, "noise problem")
    draw = streams.generator("images")
    y = torch.arange(60) % 3
    x = torch.randn(60, 1, 8, 8, generator=draw, dtype=torch.float64)
    x += torch.randn(3, 1, 8, 8, generator=draw, dtype=torch.float64)[y]
    parts = [TensorExamples(x[i], y[i]) for i in (slice(0, 12), slice(12, 48), slice(48, 60))]
    recipe = Recipe(epochs=4, batch_size=16)
    models = [_trained(examples, seed, recipe, width=2, classes=3) for examples in (_join(*parts[:2]), parts[1])]
    return Problem(models[0], models[1], *parts)


def digits_problem(seed: int, *, epochs: int = 12) -> Problem:
    """A small residual network on scikit-learn's digits that is to forget a class, chosen by the seed."""
    streams = Streams(seed, "digits problem")
    data = load_data().train
    order = torch.randperm(len(data), generator=streams.generator("order"))
    held, used = order[:140], order[140:]
    label = int(torch.randint(0, 10, (), generator=streams.generator("class")))
    chosen = data.y[used] == label
    forget, retain, validation = (data.select(i) for i in (used[chosen], used[~chosen], held))
    recipe = Recipe(epochs=epochs)
    original = _trained(_join(forget, retain), seed, recipe, width=16, classes=10)
    return Problem(original, _trained(retain, seed, recipe, width=16, classes=10), forget, retain, validation)


def _join(first: TensorExamples, second: TensorExamples) -> TensorExamples:
    return TensorExamples(torch.cat([first.x, second.x]), torch.cat([first.y, second.y]))


def _trained(examples: TensorExamples, seed: int, recipe: Recipe, *, width: int, classes: int) -> SmallResNet:
    streams = Streams(seed, "training")
    model = build_model("small_resnet", generator=streams.generator("weights"), width=width, classes=classes)
    assert isinstance(model, SmallResNet)
    model.to(examples.x.dtype)
    run_training(Training(model, examples, recipe=recipe, streams=streams))
    return model
