"""SCRUB (Kurmanji et al., 2023): a student that leaves the teacher on what is forgotten and obeys it on what is
kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.examples import Examples, index_device, take_later
from ..data.sampling import batch_shape, epoch
from ..errors import InputError
from ..models.modes import predict
from ..symmetry.moves import Move
from ..training.schedule import staircase
from ..training.scoring import logits
from ..training.stepper import Number, OptimizerName, Stepper
from ..training.update import Update, Updates
from .protocol import NormMode, Task, option, require
from .teacher import Teacher, divergence


@dataclass(frozen=True, kw_only=True)
class Scrub:
    """Epoch e: while e < max_epochs, a pass over the forget set maximising KL_T(teacher ‖ student); then always a pass
    over the retain set minimising γ·CE + α·KL_T. With `rewind` (SCRUB+R) the model returned is the one, of all epochs'
    ends and the start, whose error on the forget set is closest to the final model's error on validation examples of
    the same classes.
    """

    name: ClassVar[str] = "scrub"
    norm_mode: ClassVar[NormMode] = "train"

    alpha: float = option(0.5, "weight of the divergence from the teacher on the retain set")
    gamma: float = option(1.0, "weight of the cross-entropy on the retain set")
    temperature: float = option(4.0, "temperature of the divergence")
    max_epochs: int = option(3, "epochs that also maximise the divergence on the forget set")
    epochs: int = option(5, "epochs in all")
    lr: float = option(5e-4, "learning rate; divided by 10 for epochs that start after 0.5, 0.8 and 0.9 of all")
    optimizer: OptimizerName = option("sgd", "sgd or adam")
    momentum: float = option(0.9, "momentum of SGD")
    weight_decay: float = option(5e-4, "weight decay")
    retain_batch_size: int = option(128, "examples a retain batch")
    forget_batch_size: int = option(64, "examples a forget batch")
    rewind: bool = option(False, "choose the checkpoint by forget and validation error (SCRUB+R)")

    def __post_init__(self) -> None:
        require(
            self, positive=("lr", "temperature"), shares=("momentum",), choices={"optimizer": get_args(OptimizerName)}
        )
        require(self, not_negative=("alpha", "gamma", "weight_decay"))
        require(self, counts=("max_epochs", "epochs", "retain_batch_size", "forget_batch_size"))

    def updates(self, model: nn.Module, task: Task) -> Updates:
        """One step a batch; forget batches first in each of the first `max_epochs` epochs."""
        stepper = Stepper(model, optimizer=self.optimizer, momentum=self.momentum, weight_decay=self.weight_decay)
        teachers = {
            "forget": Teacher(task.original, task.forget),
            "retain": Teacher(task.original, task.retain),
        }
        rewind = Rewind(model, task) if self.rewind else None

        def leave(x: Tensor, y: Tensor, taught: Tensor, lr: Number) -> dict[str, Tensor]:
            drift = divergence(taught, predict(model, x), temperature=self.temperature)
            stepper.step(-drift, lr=lr)
            return {"forget_divergence": drift}

        def obey(x: Tensor, y: Tensor, taught: Tensor, lr: Number) -> dict[str, Tensor]:
            output = predict(model, x)
            drift, entropy = divergence(taught, output, temperature=self.temperature), F.cross_entropy(output, y)
            stepper.step(self.gamma * entropy + self.alpha * drift, lr=lr)
            return {"retain": entropy, "retain_divergence": drift}

        updates = {"forget": task.repeated(leave), "retain": task.repeated(obey)}
        step, of = 0, self._steps(task)
        for e in range(self.epochs):
            lr = self.lr * staircase(e / self.epochs, milestones=(0.5, 0.8, 0.9))
            schedule = list(self._schedule(task, e))
            for position, (phase, index) in enumerate(schedule, 1):
                examples: Examples = getattr(task, phase)
                x, y = take_later(examples, index)
                terms = updates[phase](x, y, teachers[phase](index, x), lr)
                step += 1
                moved = yield Update(step, of, e, position == len(schedule), terms)
                stepper.carry(moved)
                if rewind is not None:
                    rewind.carry(moved)
            if rewind is not None:
                rewind.record(model)
        if rewind is not None:
            rewind.apply(model)

    def _schedule(self, task: Task, e: int) -> Iterator[tuple[str, Tensor]]:
        streams = task.streams
        if e < self.max_epochs:
            yield from _indices("forget", task.forget, self.forget_batch_size, streams.generator("forget", e))
        yield from _indices("retain", task.retain, self.retain_batch_size, streams.generator("retain", e))

    def _steps(self, task: Task) -> int:
        forget, _ = batch_shape(len(task.forget), self.forget_batch_size)
        retain, _ = batch_shape(len(task.retain), self.retain_batch_size)
        return min(self.max_epochs, self.epochs) * forget + self.epochs * retain


def _indices(
    phase: str, examples: Examples, batch_size: int, generator: torch.Generator
) -> Iterator[tuple[str, Tensor]]:
    order = epoch(len(examples), batch_size, generator=generator, device=index_device(examples))
    return ((phase, index) for index in order)


class Rewind:
    """The checkpoints of a SCRUB run, kept in memory, and the choice among them. The first is the starting model."""

    def __init__(self, model: nn.Module, task: Task) -> None:
        self._forget = task.forget
        self._validation = task.require_validation("scrub with rewind=True")
        self._same_class = torch.isin(self._validation.y, self._forget.y)
        if not bool(self._same_class.any()):
            raise InputError(
                "scrub with rewind=True compares with validation examples of the forgotten classes, and there are "
                "none; give some, or set rewind=False"
            )
        self.errors: list[float] = []
        self._snapshots: list[dict[str, Tensor]] = []
        self.record(model)

    def record(self, model: nn.Module) -> None:
        """Keep the weights as they are, with their error on the forget set."""
        self.errors.append(float(_mistakes(model, self._forget).mean()))
        self._snapshots.append({n: t.clone() for n, t in model.state_dict().items()})

    def carry(self, move: Move | None) -> None:
        """Move the checkpoints with the weights."""
        if move is not None:
            self._snapshots = [{n: move.point(n, t) for n, t in s.items()} for s in self._snapshots]

    def choose(self, model: nn.Module) -> int:
        """The checkpoint, the later of equals, whose forget error is closest to the validation error of `model` on the
        forgotten classes.
        """
        target = float(_mistakes(model, self._validation)[self._same_class].mean())
        return min(range(len(self.errors)), key=lambda i: (abs(self.errors[i] - target), -i))

    def apply(self, model: nn.Module) -> None:
        """Put the chosen checkpoint into `model`."""
        model.load_state_dict(self._snapshots[self.choose(model)])


def _mistakes(model: nn.Module, examples: Examples) -> Tensor:
    return (logits(model, examples).argmax(1) != examples.y).double()
