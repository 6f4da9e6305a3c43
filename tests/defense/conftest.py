"""A tiny network, a task on it, and symmetries that do what a test tells them, for the tests of defences."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from warp_unlearning.conformance.problem import Problem, noise_problem
from warp_unlearning.defense.teleporter import View
from warp_unlearning.methods.base import Task
from warp_unlearning.symmetry.base import Probe, Sizes
from warp_unlearning.symmetry.moves import Move, Translation
from warp_unlearning.training.stepper import Stepper
from warp_unlearning.training.update import Update

Named = dict[str, Tensor]


@dataclass
class Given:
    """A symmetry whose move a test gives, and which remembers what it was shown and gave."""

    make: Callable[[nn.Module, Probe | None], Move]
    looks_at: Sizes = field(default_factory=Sizes)
    seen: list[tuple[Named, Probe | None]] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)

    def __deepcopy__(self, memo: dict[int, Any]) -> Given:
        return self

    def move(self, model: nn.Module, *, generator: torch.Generator, probe: Probe | None = None) -> Move:
        assert not model.training
        self.seen.append(({n: t.clone() for n, t in model.state_dict().items()}, probe))
        self.moves.append(self.make(model, probe))
        return self.moves[-1]


class Watching:
    """Descends the retain loss, and remembers what it was sent and its optimizer's state around each move."""

    name: ClassVar[str] = "watching"

    def __init__(
        self, *, steps: int = 6, an_epoch: int = 2, lr: float = 0.05, momentum: float = 0.9, norm_mode: str = "eval"
    ) -> None:
        self.steps, self.an_epoch, self.lr, self.momentum, self.norm_mode = steps, an_epoch, lr, momentum, norm_mode
        self.log: list[tuple[Move | None, Named, Named]] = []

    def updates(self, model: nn.Module, task: Task) -> Generator[Update, Move | None, None]:
        stepper = Stepper(model, momentum=self.momentum)
        x, y = task.retain.take(torch.arange(len(task.retain)))
        for step in range(1, self.steps + 1):
            loss = F.cross_entropy(model(x), y)
            stepper.step(loss, lr=self.lr)
            ends = step % self.an_epoch == 0
            moved = yield Update(step, self.steps, (step - 1) // self.an_epoch, ends, {"retain": loss.detach()})
            before = {n: t.clone() for n, t in stepper.state().items()}
            stepper.carry(moved)
            self.log.append((moved, before, {n: t.clone() for n, t in stepper.state().items()}))


def known(symmetry: Any, seed: int = 5) -> Given:
    """Moves of a symmetry, drawn from a seed of the test's own."""
    made = lambda model, probe: symmetry.move(model, generator=generator(seed), probe=probe)  # noqa: E731
    return Given(made, symmetry.looks_at)


def network(seed: int = 0, *, hidden: int = 8, norm: bool = True) -> nn.Sequential:
    """Float64, classes 0 to 2, with batch norm and dropout unless told otherwise."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        middle: list[nn.Module] = [nn.BatchNorm1d(hidden), nn.Dropout(0.3)] if norm else []
        model = nn.Sequential(nn.Linear(5, hidden), *middle, nn.ReLU(), nn.Linear(hidden, 3)).double()
        with torch.no_grad():
            model(torch.randn(30, 5, dtype=torch.float64) + 0.5)
            model[0].bias.add_(0.3)
    return model


def points(count: int, seed: int) -> tuple[Tensor, Tensor]:
    y = torch.arange(count) % 3
    return torch.randn(count, 5, generator=generator(seed), dtype=torch.float64) + 0.5 * y.unsqueeze(1), y


def sets() -> dict[str, Any]:
    return {"forget": points(9, 1), "retain": points(25, 2)}


def view(*, validation: bool = False) -> View:
    retain, judges, forget, held_out = (points(*each) for each in ((12, 2), (7, 3), (6, 4), (8, 5)))
    return View(retain, judges, forget, held_out if validation else None)


def state(model: nn.Module) -> Named:
    return {n: t.detach().clone() for n, t in model.state_dict().items()}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def logits(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return deepcopy(model).eval()(x)


def loss(model: nn.Module, pair: tuple[Tensor, Tensor]) -> float:
    return float(F.cross_entropy(logits(model, pair[0]), pair[1]))


def energy(model: nn.Module, pair: tuple[Tensor, Tensor]) -> float:
    """Mean over examples of the squared gradient norm, one at a time."""
    copy, total = deepcopy(model).eval(), 0.0
    trained = [p for p in copy.parameters() if p.requires_grad]
    for x, y in zip(*pair, strict=True):
        found = torch.autograd.grad(F.cross_entropy(copy(x[None]), y[None]), trained, allow_unused=True)
        total += float(sum(g.square().sum() for g in found if g is not None))
    return total / len(pair[1])


def at(model: nn.Module, shifts: Mapping[str, Tensor]) -> nn.Module:
    copy = deepcopy(model)
    with torch.no_grad():
        for name, shift in shifts.items():
            copy.get_parameter(name).add_(shift)
    return copy


def climb(model: nn.Module, pair: tuple[Tensor, Tensor], size: float) -> Translation:
    """A shift of that length up the loss of some examples; of negative length, down."""
    copy = deepcopy(model).eval().requires_grad_(True)
    found = torch.autograd.grad(F.cross_entropy(copy(pair[0]), pair[1]), list(copy.parameters()))
    length = float(torch.cat([g.flatten() for g in found]).norm())
    return Translation({n: size / length * g for (n, _), g in zip(copy.named_parameters(), found, strict=True)})


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def shift(model: nn.Module, size: float, seed: int = 0) -> Translation:
    draw = torch.Generator().manual_seed(seed)
    return Translation(
        {n: size * torch.randn(p.shape, generator=draw, dtype=p.dtype) for n, p in model.named_parameters()}
    )


def reached(model: nn.Module, x: Tensor) -> Named:
    """For a network of linear layers in turn: where an input of a weight is not zero throughout."""
    masks, copy = {n: torch.ones_like(p, dtype=torch.bool) for n, p in model.named_parameters()}, deepcopy(model)
    with torch.no_grad():
        for name, layer in copy.eval().named_children():
            if isinstance(layer, nn.Linear):
                masks[f"{name}.weight"] &= (x != 0).any(0)
            x = layer(x)
    return masks


def length(a: Named, b: Named, masks: Named) -> float:
    """‖a − b‖ over the entries of the masks."""
    return float(sum((a[n] - b[n])[mask].square().sum() for n, mask in masks.items()) ** 0.5)


@pytest.fixture(scope="session")
def kit() -> ModuleType:
    """The functions of this file."""
    return sys.modules[__name__]


@pytest.fixture(scope="session")
def noise() -> Problem:
    return noise_problem()
