"""A tiny network with batch norm, a task on it, and optimizers written out, for oracles of the methods."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from copy import deepcopy
from math import ceil
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.methods.base import Method, Task
from warp_unlearning.randomness import Streams
from warp_unlearning.symmetry.moves import AxisMap, ChannelMove, Move, apply_move
from warp_unlearning.training.update import Update

CLASSES = 3


def network(seed: int = 0, *, inputs: int = 5, hidden: int = 6) -> nn.Sequential:
    """Float64, with running statistics and affine parameters that are not the initial ones."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Linear(inputs, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, CLASSES)
        ).double()
        with torch.no_grad():
            model[1].weight.add_(0.3 * torch.randn(hidden))
            model[1].bias.add_(0.3 * torch.randn(hidden))
            model(torch.randn(30, inputs).double() + 0.5)
    return model


def points(count: int, seed: int, *, inputs: int = 5, classes: tuple[int, ...] = (0, 1, 2)) -> TensorExamples:
    generator = torch.Generator().manual_seed(seed)
    y = torch.tensor(classes)[torch.randint(0, len(classes), (count,), generator=generator)]
    x = torch.randn(count, inputs, generator=generator).double() + 0.7 * y.unsqueeze(1)
    return TensorExamples(x, y)


def task_of(model: nn.Module, *, seed: int = 7, **sets: Any) -> Task:
    """11 examples to forget, 27 to keep, 10 to validate with, unless given."""
    return Task(
        sets.get("forget", points(11, 1, classes=(0, 1))),
        sets.get("retain", points(27, 2)),
        sets.get("validation", points(10, 3)),
        deepcopy(model).requires_grad_(False).eval(),
        CLASSES,
        Streams(seed, "unlearn"),
    )


def trained(seed: int = 0) -> nn.Sequential:
    """The network after 40 full-batch steps on the forget and retain sets of `task_of`."""
    model = network(seed).train()
    task = task_of(model)
    x, y = torch.cat([task.forget.x, task.retain.x]), torch.cat([task.forget.y, task.retain.y])
    optimizer = SGD(model, 0.0, 0.0)
    for _ in range(40):
        optimizer.step(cross_entropies(model(x), y).mean(), 0.3)
    return model


def batches(count: int, size: int, generator: torch.Generator) -> list[Tensor]:
    """A shuffled pass in batches of one shape, written out."""
    number = ceil(count / size)
    order = torch.randperm(count, generator=generator)
    return [order[k * (count // number) : (k + 1) * (count // number)] for k in range(number)]


class Cycle:
    """Shuffled passes one after another from one generator."""

    def __init__(self, count: int, size: int, generator: torch.Generator) -> None:
        self._settings = (count, size, generator)
        self._left: list[Tensor] = []

    def next(self) -> Tensor:
        if not self._left:
            self._left = batches(*self._settings)
        return self._left.pop(0)


def cross_entropies(output: Tensor, y: Tensor) -> Tensor:
    return output.logsumexp(1) - output[torch.arange(len(y)), y]


class SGD:
    """SGD with momentum and weight decay by its formula; `movable` entries alone move, those outside of `seen` have no
    gradient.
    """

    def __init__(self, model: nn.Module, momentum: float, weight_decay: float) -> None:
        self.parameters = dict(model.named_parameters())
        self.momentum, self.weight_decay = momentum, weight_decay
        self.buffers = {n: torch.zeros_like(p) for n, p in self.parameters.items()}

    def step(
        self,
        loss: Tensor,
        lr: float,
        *,
        movable: Mapping[str, Tensor] | None = None,
        seen: Mapping[str, Tensor] | None = None,
        max_norm: float | None = None,
    ) -> None:
        values = torch.autograd.grad(loss, list(self.parameters.values()))
        gradients = dict(zip(self.parameters, values, strict=True))
        if seen is not None:
            gradients = {n: torch.where(seen[n], g, 0.0) for n, g in gradients.items()}
        if max_norm is not None:
            norm = float(sum(g.square().sum() for g in gradients.values())) ** 0.5
            gradients = {n: g * min(1.0, max_norm / (norm + 1e-6)) for n, g in gradients.items()}
        with torch.no_grad():
            for name, p in self.parameters.items():
                buffer = self.momentum * self.buffers[name] + gradients[name] + self.weight_decay * p
                self.buffers[name] = buffer
                after = p - lr * buffer
                p.copy_(after if movable is None else torch.where(movable[name], after, p))


class Adam:
    """Adam by its formula."""

    def __init__(self, model: nn.Module, weight_decay: float = 0.0) -> None:
        self.parameters, self.weight_decay = list(model.parameters()), weight_decay
        self.first = [torch.zeros_like(p) for p in self.parameters]
        self.second = [torch.zeros_like(p) for p in self.parameters]
        self.count = 0

    def step(self, loss: Tensor, lr: float) -> None:
        self.count += 1
        gradients = torch.autograd.grad(loss, self.parameters)
        with torch.no_grad():
            for p, g, m, v in zip(self.parameters, gradients, self.first, self.second, strict=True):
                g = g + self.weight_decay * p
                m.mul_(0.9).add_(0.1 * g)
                v.mul_(0.999).add_(0.001 * g * g)
                p.sub_(lr * (m / (1 - 0.9**self.count)) / ((v / (1 - 0.999**self.count)).sqrt() + 1e-8))


def run(method: Method, model: nn.Module, task: Task, *, move_after: Mapping[int, Move] | None = None) -> list[Update]:
    """Drive the method to its end, moving the weights after the updates named."""
    model.train(method.norm_mode == "train")
    updates, found, moved = method.updates(model, task), [], None
    while True:
        try:
            update = updates.send(moved)
        except StopIteration:
            return found
        found.append(update)
        moved = (move_after or {}).get(update.step)
        if moved is not None:
            apply_move(model, moved)


def permutation(order: list[int]) -> ChannelMove:
    """The hidden units of the network reordered."""
    rows = (AxisMap(0, torch.tensor(order)),)
    names = ("0.weight", "1.weight", "1.bias", "1.running_mean", "1.running_var")
    return ChannelMove(dict.fromkeys(names, rows) | {"3.weight": (AxisMap(1, torch.tensor(order)),)})


def assert_close(found: nn.Module, expected: nn.Module, *, tolerance: float = 1e-9) -> None:
    state = expected.state_dict()
    for name, value in found.state_dict().items():
        torch.testing.assert_close(
            value, state[name], rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )


def assert_updates(updates: list[Update], rows: list[dict[str, float]], per_epoch: int, rel: float = 1e-9) -> None:
    """The losses of every update, and its place in epochs of so many."""
    assert [{n: float(v) for n, v in u.losses.items()} for u in updates] == [
        pytest.approx(row, rel=rel, abs=1e-12) for row in rows
    ]
    assert [(u.step, u.total, u.epoch, u.ends_epoch) for u in updates] == [
        (i + 1, len(rows), i // per_epoch, i % per_epoch == per_epoch - 1) for i in range(len(rows))
    ]
    assert not any(v.requires_grad for u in updates for v in u.losses.values())


@pytest.fixture
def kit() -> ModuleType:
    """The functions of this file."""
    return sys.modules[__name__]


@pytest.fixture
def model() -> nn.Sequential:
    return network()


@pytest.fixture
def task(model: nn.Sequential) -> Task:
    return task_of(model)
