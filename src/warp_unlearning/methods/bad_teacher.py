"""Bad teacher (Chundawat et al., 2023): imitate an untrained network on the forget set, the original on the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, get_args

import torch
from torch import Tensor, nn

from ..data.examples import TensorExamples
from ..data.sampling import batch_shape, epoch
from ..models.modes import predict
from ..training.scoring import logits
from ..training.stepper import Number, OptimizerName, Stepper
from ..training.update import Update, Updates
from .base import NormMode, Task, option, require
from .scrub import divergence


@dataclass(frozen=True, kw_only=True)
class BadTeacher:
    """Minimises KL(target ‖ student) over mixed batches of the forget set and a random part of the retain set. The
    target is the output of a randomly initialised network on forget examples and the original's on the others. The
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
        """Yield after every step towards the targets of one mixed batch: both teachers' logits, computed beforehand."""
        stepper = Stepper(model, optimizer=self.optimizer, momentum=self.momentum, weight_decay=self.weight_decay)
        untrained = task.fresh(task.original, "untrained").requires_grad_(False).eval()
        mixed = _Mixed(task, untrained, share=self.retain_share)

        def imitate(x: Tensor, target: Tensor, lr: Number) -> dict[str, Tensor]:
            """Take one step that brings the student's outputs on x nearer to the target logits."""
            # The published loss has no T² in front; `divergence` has.
            loss = divergence(target, predict(model, x), temperature=self.temperature) / self.temperature**2
            stepper.step(loss, lr=lr)
            return {"divergence": loss}

        update = task.update(imitate)
        batches, _ = batch_shape(len(mixed), self.batch_size)
        total = self.epochs * batches
        for e in range(self.epochs):
            order = mixed.batches(self.batch_size, generator=task.streams.generator("mixed", e))
            for i, (x, target) in enumerate(order, e * batches + 1):
                terms = update(x, target, self.lr)
                move = yield Update(i, total, e, i == (e + 1) * batches, terms)
                stepper.carry(move)


class _Mixed:
    """Inputs with target logits: all forget examples, then a random share of the retain set.

    They are computed once if the inputs are tensors, and batch by batch if a `Dataset` may augment them.
    """

    def __init__(self, task: Task, untrained: nn.Module, *, share: float) -> None:
        # `_rows` are positions in the forget set, then in the retain set; `_table` inputs and targets in that order.
        retain, count = task.retain, max(1, round(share * len(task.retain)))
        kept = torch.randperm(len(retain), generator=task.streams.generator("part"))[:count]
        self._forget_count = len(task.forget)
        self._rows = torch.cat([torch.arange(self._forget_count), kept])
        self._sources = ((task.forget, untrained), (retain, task.original))
        self._table: tuple[Tensor, Tensor] | None = None
        if isinstance(task.forget, TensorExamples) and isinstance(retain, TensorExamples):
            part = retain.select(kept)
            targets = torch.cat([logits(untrained, task.forget), logits(task.original, part)])
            self._table = torch.cat([task.forget.x, part.x]), targets

    def __len__(self) -> int:
        return len(self._rows)

    def batches(self, size: int, *, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and target logits in one shuffled pass, from the table if there is one.

        Within a batch the forget examples come first.
        """
        shuffled = epoch(len(self), size, generator=generator)
        split = self._forget_count
        order = [torch.cat([index[index < split], index[index >= split]]) for index in shuffled]
        if self._table is None:
            yield from map(self._computed, order)
            return
        inputs, targets = self._table
        # Batches have one shape: stacked, their indices reach the device in one copy.
        for index in torch.stack(order).to(inputs.device):
            yield inputs.index_select(0, index), targets.index_select(0, index)

    @torch.no_grad()
    def _computed(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and target logits of one batch, whose forget examples come first, computed now."""
        count = int((index < self._forget_count).sum())
        inputs, targets = [], []
        for rows, (examples, teacher) in zip(self._rows[index].tensor_split([count]), self._sources, strict=True):
            if len(rows):
                inputs.append(examples.take(rows).x)
                targets.append(teacher(inputs[-1]))
        return torch.cat(inputs), torch.cat(targets)
