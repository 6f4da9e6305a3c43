"""Small problems on which methods are checked: one of noise, in float64, and one of digits, where a method must forget:
approach the retrained model and keep what it knows of the retained examples.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import nn

from ..data.examples import TensorExamples
from ..data.preprocess import load_data
from ..errors import DivergedError, WarpWarning
from ..methods.base import Method
from ..models.networks import build_model
from ..randomness import Streams
from ..training.scoring import accuracy, logits
from ..training.training import Recipe, Training, run_training
from ..unlearning.driver import unlearn
from ..unlearning.judge import output_distance

MOST_LOST = 0.02


@dataclass(frozen=True, eq=False)
class Problem:
    """A trained model, what to forget and what to keep, and the model retrained without the forget set."""

    original: nn.Module
    retrained: nn.Module
    forget: TensorExamples
    retain: TensorExamples
    validation: TensorExamples


def noise_problem(seed: int = 0) -> Problem:
    """A residual network with batch norm in float64 on 60 noisy images of 3 classes, trained within a second."""
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
    """A small residual network on scikit-learn's digits and the class it must forget, chosen by the seed."""
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


def forgets(method: Method, problem: Problem, *, seed: int) -> str | None:
    """How the method fails to approach the retrained model at little cost, or None."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WarpWarning)  # the gap shows that nothing changed
        try:
            result = unlearn(
                problem.original,
                forget=problem.forget,
                retain=problem.retain,
                validation=problem.validation,
                method=method,
                seed=seed,
            )
        except DivergedError as error:
            return f"seed {seed}: {error}"
    before, after = gap(problem.original, problem), gap(result.model, problem)
    if not after < before:
        return f"seed {seed}: the distance to the retrained model's outputs went from {before:.3f} to {after:.3f}"
    known, kept = (accuracy(model, problem.retain) for model in (problem.original, result.model))
    if kept < known - MOST_LOST:
        return f"seed {seed}: retain accuracy fell from {known:.3f} to {kept:.3f}, by more than {MOST_LOST}"
    return None


@torch.no_grad()
def gap(model: nn.Module, problem: Problem) -> float:
    """Mean total variation distance to the retrained model's outputs on the forget set."""
    outputs, retrained = (logits(m, problem.forget) for m in (model, problem.retrained))
    return float(output_distance(outputs, retrained).mean())


def _join(first: TensorExamples, second: TensorExamples) -> TensorExamples:
    return TensorExamples(torch.cat([first.x, second.x]), torch.cat([first.y, second.y]))


def _trained(examples: TensorExamples, seed: int, recipe: Recipe, *, width: int, classes: int) -> nn.Module:
    streams = Streams(seed, "training")
    model = build_model("small_resnet", generator=streams.generator("weights"), width=width, classes=classes)
    model.to(examples.x.dtype)
    run_training(Training(model, examples, recipe=recipe, streams=streams))
    return model
