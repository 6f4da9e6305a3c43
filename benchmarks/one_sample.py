"""One example to forget, by steps of ascent on its loss beside descent on a few others: the attackers' easiest case."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from warp_unlearning import unlearn
from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.data.preprocess import load_data
from warp_unlearning.methods.protocol import NormMode, Task
from warp_unlearning.models.networks import build_model
from warp_unlearning.randomness import Streams
from warp_unlearning.training.recipe import Recipe
from warp_unlearning.training.scoring import logits, losses
from warp_unlearning.training.stepper import Stepper
from warp_unlearning.training.training import Training, run_training
from warp_unlearning.training.update import Update, Updates

BESIDE = 5
PROBES = 512


@dataclass(frozen=True)
class Steps:
    """θ ← θ − (lr / steps) ∇ ½[CE(retain batch) − CE(forget)], so often, with the same batch of five and without
    momentum.
    """

    name: ClassVar[str] = "steps"

    lr: float
    steps: int = 1

    @property
    def norm_mode(self) -> NormMode:
        """Batch norm by running statistics."""
        return "eval"

    def updates(self, model: nn.Module, task: Task) -> Updates:
        """The steps, which make one epoch."""
        stepper = Stepper(model, momentum=0.0)
        some = torch.randperm(len(task.retain), generator=task.streams.generator("retain"))[:BESIDE]
        retain, forget = task.retain.take(some), task.forget.take(torch.arange(len(task.forget)))
        for i in range(1, self.steps + 1):
            terms = {
                "retain": F.cross_entropy(model(retain.x), retain.y),
                "forget": F.cross_entropy(model(forget.x), forget.y),
            }
            stepper.step(0.5 * (terms["retain"] - terms["forget"]), lr=self.lr / self.steps)
            moved = yield Update(i, self.steps, 0, i == self.steps, {n: v.detach() for n, v in terms.items()})
            stepper.carry(moved)


@dataclass(frozen=True, eq=False)
class Trained:
    """A network in float64, what it was trained on, and points from the same source that it has not seen."""

    model: nn.Module
    examples: TensorExamples
    probes: TensorExamples


@dataclass(frozen=True, eq=False)
class Target:
    """One example to forget, all others, the gradient of its loss, and the learning rates at which one or 20 plain
    steps forget it.
    """

    forget: TensorExamples
    retain: TensorExamples
    gradient: dict[str, Tensor]
    rates: dict[int, float]


def trained(seed: int) -> Trained:
    """A small residual network trained for 12 epochs on 1,260 digits, as the project's other problems are."""
    streams = Streams(seed, "one sample")
    data = load_data()
    order = torch.randperm(len(data.train), generator=streams.generator("order"))
    used, held = data.train.select(order[140:]), data.train.select(order[:140])
    model = build_model("small_resnet", generator=streams.generator("weights"))
    run_training(Training(model, used, recipe=Recipe(epochs=12), streams=streams))
    probes = TensorExamples(
        torch.cat([data.test.x, held.x])[:PROBES].double(), torch.cat([data.test.y, held.y])[:PROBES]
    )
    return Trained(model.double().eval(), TensorExamples(used.x.double(), used.y), probes)


def targets(subject: Trained, count: int, *, seed: int) -> Iterator[Target]:
    """The training examples of largest loss, one after another."""
    for i in losses(subject.model, subject.examples).argsort(descending=True)[:count].tolist():
        others = torch.arange(len(subject.examples)) != i
        forget = subject.examples.select(torch.tensor([i]))
        retain = subject.examples.select(others.nonzero().squeeze(1))
        named = dict(subject.model.named_parameters())
        loss = F.cross_entropy(subject.model(forget.x), forget.y)
        gradient = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
        rates = {steps: _forgetting_rate(subject.model, forget, retain, steps, seed) for steps in (1, 20)}
        yield Target(forget, retain, gradient, rates)


def _forgetting_rate(model: nn.Module, forget: TensorExamples, retain: TensorExamples, steps: int, seed: int) -> float:
    """The learning rate, to a tenth, from which on so many steps make the example misclassified."""

    def forgets(lr: float) -> bool:
        after = unlearn(model, forget=forget, retain=retain, method=Steps(lr, steps), seed=seed).model
        return bool(logits(after, forget).argmax(1) != forget.y)

    low, high = 0.005, 0.01
    while not forgets(high):
        low, high = high, 2 * high
    while high > 1.1 * low:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if forgets(middle) else (middle, high)
    return high
