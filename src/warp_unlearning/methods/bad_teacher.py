"""Bad teacher (Chundawat et al., 2023): imitate an untrained network on what is forgotten, the original on what is
kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, get_args

import torch
from torch import Tensor, nn

from ..data.examples import Given, Taken, TensorExamples, taken
from ..data.sampling import batch_shape, epoch
from ..models.modes import predict
from ..training.stepper import Number, OptimizerName, Stepper
from ..training.update import Update, Updates
from .protocol import NormMode, Task, option, require
from .teacher import Teacher, divergence


@dataclass(frozen=True, kw_only=True)
class BadTeacher:
    """Minimises KL(target ‖ student) over mixed batches of the forget set and a random part of the retain set, where
    the target is the randomly initialised teacher's output on forget examples and the original's on the others. The
    divergence is a mean over the batch (not, as in the published code, also over the classes), without a factor T².
    """

    name: ClassVar[str] = "bad_teacher"
    norm_mode: ClassVar[NormMode] = "train"

    temperature: float = option(1.0, "temperature of both teachers and of the student")
    retain_share: float = option(0.3, "share of the retain set that takes part, drawn once")
    lr: float = option(1e-4, "learning rate")
    optimizer: OptimizerName = option("adam", "sgd or adam")
    momentum: float = option(0.9, "momentum of SGD")
    weight_decay: float = option(0.0, "weight decay")
    epochs: int = option(5, "passes over the mixed set")
    batch_size: int = option(256, "examples a batch")

    def __post_init__(self) -> None:
        require(self, positive=("lr", "temperature", "retain_share"), shares=("retain_share", "momentum"))
        require(self, counts=("epochs", "batch_size"), not_negative=("weight_decay",))
        require(self, choices={"optimizer": get_args(OptimizerName)})

    def updates(self, model: nn.Module, task: Task) -> Updates:
        """One step a mixed batch."""
        stepper = Stepper(model, optimizer=self.optimizer, momentum=self.momentum, weight_decay=self.weight_decay)
        untrained = untrained_copy(task)
        kept = self._part_of_retain(task)
        bad, good = Teacher(untrained, task.forget), Teacher(task.original, task.retain, rows=kept)
        mixed = _Mixed(task, kept, bad, good)

        def imitate(x: Tensor, target: Tensor, lr: Number) -> dict[str, Tensor]:
            # The published loss has no T² in front, so it is taken out again.
            loss = divergence(target, predict(model, x), temperature=self.temperature) / self.temperature**2
            stepper.step(loss, lr=lr)
            return {"divergence": loss}

        update = task.repeated(imitate)
        count = len(task.forget) + len(kept)
        batches, _ = batch_shape(count, self.batch_size)
        of = self.epochs * batches
        for e in range(self.epochs):
            order = mixed.batches(self.batch_size, generator=task.streams.generator("mixed", e))
            for i, (x, target) in enumerate(order, e * batches + 1):
                terms = update(x, target, self.lr)
                moved = yield Update(i, of, e, i == (e + 1) * batches, terms)
                stepper.carry(moved)

    def _part_of_retain(self, task: Task) -> Tensor:
        count = max(1, round(self.retain_share * len(task.retain)))
        return torch.randperm(len(task.retain), generator=task.streams.generator("part"))[:count]


def untrained_copy(task: Task) -> nn.Module:
    """The original's architecture with fresh random weights, frozen, in eval mode."""
    return task.fresh(task.original, "untrained").requires_grad_(False).eval()


@dataclass(frozen=True, eq=False)
class _Mixed:
    """Inputs and target logits for positions of the mixed set: forget examples first, then the kept part of retain."""

    task: Task
    kept: Tensor
    bad: Teacher
    good: Teacher

    def batches(self, batch_size: int, *, generator: torch.Generator) -> Iterator[tuple[Given, Given]]:
        """One shuffled pass; in a batch the forget examples come before the others."""
        order = epoch(len(self.task.forget) + len(self.kept), batch_size, generator=generator)
        if self._table is None:
            yield from (self._fetched(index) for index in order)
            return
        inputs, targets = self._table
        # Sorted on the CPU and sent all at once, so that no batch waits for its indices.
        known = [torch.cat([i[i < len(self.task.forget)], i[i >= len(self.task.forget)]]) for i in order]
        for index in torch.stack(known).to(inputs.device):
            yield Taken(inputs, index), Taken(targets, index)

    @cached_property
    def _table(self) -> tuple[Tensor, Tensor] | None:
        """The inputs of the mixed set with their targets, where they are tensors."""
        forget, retain = self.task.forget, self.task.retain
        if not isinstance(forget, TensorExamples) or not isinstance(retain, TensorExamples):
            return None
        return self._fetched(torch.arange(len(forget) + len(self.kept)))

    def _fetched(self, index: Tensor) -> tuple[Tensor, Tensor]:
        is_forget = index < len(self.task.forget)
        forget, retain = index[is_forget], self.kept[index[~is_forget] - len(self.task.forget)]
        parts = [
            (x, taken(teacher(i, x)))
            for i, teacher, examples in ((forget, self.bad, self.task.forget), (retain, self.good, self.task.retain))
            if len(i)
            for x in (examples.take(i).x,)
        ]
        return torch.cat([x for x, _ in parts]), torch.cat([t for _, t in parts])
