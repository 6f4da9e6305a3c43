"""A small problem in which what audits must find, and must not find, is known beforehand.

Digits with labels drawn at random can only be learned by heart. Some of them a network learns and is then asked to
forget; others it never sees; nothing else tells the two apart. So a network that still knows the first has leaked, and
one trained without them has not.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import nn

from ..data.examples import TensorExamples
from ..data.preprocess import load_data
from ..gradients.per_sample import per_sample_gradients
from ..models.fresh import reinitialise
from ..models.networks import MLP
from ..randomness import Streams
from ..training.recipe import Recipe
from ..training.training import Training, run_training

CLASSES = 10
RECIPE = Recipe(epochs=100, batch_size=64, lr=0.2, weight_decay=0.0)


@dataclass(frozen=True, eq=False)
class PlantedProblem:
    """Examples with random labels to forget (`forget`) and never to be seen (`test`), others to keep (`retain`), a
    network that learned the first and the last, and two that learned `retain` alone.
    """

    forget: TensorExamples
    retain: TensorExamples
    test: TensorExamples
    original: nn.Module
    retrained: tuple[nn.Module, nn.Module]


def planted_problem(seed: int, *, forget: int = 100, retain: int = 400) -> PlantedProblem:
    """Draw the examples and train the three networks; a few seconds."""
    everything = random_labels(Streams(seed, "planted leak"))
    count = len(everything)
    indices = torch.split(torch.arange(count), [forget, retain, count - forget - retain])
    forgotten, retained, test = (everything.select(index) for index in indices)
    both = everything.select(torch.cat(indices[:2]))
    return PlantedProblem(
        forgotten,
        retained,
        test,
        train_network(both, Streams(seed, "original")),
        (train_network(retained, Streams(seed, "first")), train_network(retained, Streams(seed, "second"))),
    )


def random_labels(streams: Streams, count: int | None = None) -> TensorExamples:
    """So many digits (all of them, if None) in a random order, with random labels."""
    data = load_data()
    x = torch.cat([part.take(torch.arange(len(part))).x for part in (data.train, data.test)])
    order = torch.randperm(len(x), generator=streams.generator("order"))[:count]
    return TensorExamples(x[order], torch.randint(0, CLASSES, (len(order),), generator=streams.generator("labels")))


def train_network(examples: TensorExamples, streams: Streams) -> nn.Module:
    """A perceptron with one hidden layer that learns the examples by heart."""
    model = MLP(inputs=examples.x[0].numel(), classes=CLASSES, hidden=(256,))
    reinitialise(model, generator=streams.generator("weights"))
    run_training(Training(model, examples, recipe=RECIPE, streams=streams, fill=(0.0,)))
    return model.eval()


def forgotten_too_well(problem: PlantedProblem, *, epochs: int = 10) -> nn.Module:
    """An unlearning that gives itself away: the original taught other labels for what it is to forget, beside what it
    is to keep, so that it is surer of those labels being wrong than of any example it never saw.
    """
    forget, retain = problem.forget, problem.retain
    taught = TensorExamples(torch.cat([forget.x, retain.x]), torch.cat([(forget.y + 1) % CLASSES, retain.y]))
    model = deepcopy(problem.original)
    recipe = replace(RECIPE, epochs=epochs)
    run_training(Training(model, taught, recipe=recipe, streams=Streams(0, "taught"), fill=(0.0,)))
    return model.eval()


def stepped_up(model: nn.Module, examples: TensorExamples, *, length: float = 0.1) -> nn.Module:
    """The model after one step of this length up the losses of the examples, each of which pulls equally: along the sum
    of their gradients' directions.
    """
    moved = deepcopy(model)
    gradients, _ = per_sample_gradients(moved, examples.x, examples.y)
    sizes = torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0).sqrt().clamp(min=1e-30)
    summed = {name: torch.tensordot(1 / sizes, g, dims=1) for name, g in gradients.items()}
    whole = torch.stack([g.square().sum() for g in summed.values()]).sum().sqrt()
    with torch.no_grad():
        for name, p in moved.named_parameters():
            p.add_(summed[name] * (length / whole))
    return moved
