"""SCRUB (Kurmanji et al., 2023): a student departs from its teacher on the forget set, follows it on the retain set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.examples import Examples, TensorExamples, index_device
from ..data.sampling import epoch
from ..errors import InputError
from ..models.modes import predict
from ..symmetry.moves import Move
from ..training.scoring import logits
from ..training.stepper import Number, OptimizerName, Stepper
from ..training.update import Update, Updates, staircase
from .base import NormMode, SetName, Task, option, require


@dataclass(frozen=True, kw_only=True)
class Scrub:
    """Each epoch is a pass over the retain set that minimises γ·CE + α·KL_T(teacher ‖ student). Before it, in the first
    `max_epochs` epochs, a pass over the forget set maximises KL_T.

    With `rewind` (SCRUB+R) the result is a checkpoint: of the start and the end of every epoch, the one whose error on
    the forget set is closest to the final model's error on validation examples of the same classes.
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
        """Yield after every step: away from the teacher on a forget batch, or towards it on a retain batch."""
        stepper = Stepper(model, optimizer=self.optimizer, momentum=self.momentum, weight_decay=self.weight_decay)
        rewind = _Rewind(model, task) if self.rewind else None

        def diverge(x: Tensor, y: Tensor, target: Tensor, lr: Number) -> dict[str, Tensor]:
            """Take one step up the divergence from the teacher's logits on a forget batch."""
            kl = divergence(target, predict(model, x), temperature=self.temperature)
            stepper.step(-kl, lr=lr)
            return {"forget_divergence": kl}

        def imitate(x: Tensor, y: Tensor, target: Tensor, lr: Number) -> dict[str, Tensor]:
            """Take one step down the loss of a retain batch: cross-entropy and divergence from the teacher's logits."""
            output = predict(model, x)
            kl, entropy = divergence(target, output, temperature=self.temperature), F.cross_entropy(output, y)
            stepper.step(self.gamma * entropy + self.alpha * kl, lr=lr)
            return {"retain": entropy, "retain_divergence": kl}

        updates = {"forget": task.update(diverge), "retain": task.update(imitate)}
        teachers = {"forget": Teacher(task.original, task.forget), "retain": Teacher(task.original, task.retain)}
        sizes: dict[SetName, int] = {"forget": self.forget_batch_size, "retain": self.retain_batch_size}
        counts = {name: task.batch_count(name, size) for name, size in sizes.items()}
        step, total = 0, min(self.max_epochs, self.epochs) * counts["forget"] + self.epochs * counts["retain"]
        for e in range(self.epochs):
            lr = self.lr * staircase(e / self.epochs, milestones=(0.5, 0.8, 0.9))
            phases: tuple[SetName, ...] = ("forget", "retain") if e < self.max_epochs else ("retain",)
            for phase in phases:
                batches = teachers[phase].batches(sizes[phase], generator=task.streams.generator(phase, e))
                for i, batch in enumerate(batches, 1):
                    terms = updates[phase](*batch, lr)
                    step += 1
                    move = yield Update(step, total, e, phase == "retain" and i == counts[phase], terms)
                    stepper.carry(move)
                    if rewind is not None:
                        rewind.carry(move)
            if rewind is not None:
                rewind.record(model)
        if rewind is not None:
            rewind.apply(model)


class Teacher:
    """A frozen model to imitate or to depart from on one set of examples.

    Its logits are computed once if the inputs are tensors, and batch by batch if a `Dataset` may augment them.
    """

    def __init__(self, model: nn.Module, examples: Examples) -> None:
        self._model, self._examples = model, examples
        self._table = logits(model, examples) if isinstance(examples, TensorExamples) else None

    @torch.no_grad()
    def _logits(self, index: Tensor, x: Tensor) -> Tensor:
        output: Tensor = self._model(x) if self._table is None else self._table.index_select(0, index)
        return output

    def batches(self, size: int, *, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """One shuffled pass: inputs, labels, and the teacher's logits of shape (batch, classes)."""
        examples = self._examples
        for index in epoch(len(examples), size, generator=generator, device=index_device(examples)):
            x, y = examples.take(index)
            yield x, y, self._logits(index, x)


def divergence(teacher: Tensor, student: Tensor, *, temperature: float = 1.0) -> Tensor:
    """T² · mean over the batch of KL(softmax(teacher/T) ‖ softmax(student/T)), logits of shape (batch, classes)."""
    target = F.log_softmax(teacher / temperature, dim=1)
    output = F.log_softmax(student / temperature, dim=1)
    return temperature**2 * F.kl_div(output, target, reduction="batchmean", log_target=True)


class _Rewind:
    """Keeps checkpoints with their forget errors, and at the end restores the one that SCRUB+R chooses."""

    def __init__(self, model: nn.Module, task: Task) -> None:
        self._forget = task.forget
        self._validation = task.require_validation("scrub with rewind=True")
        self._same_class = torch.isin(self._validation.y, self._forget.y)
        if not bool(self._same_class.any()):
            raise InputError(
                "scrub with rewind=True compares with validation examples of the forgotten classes, and there are "
                "none; give some, or set rewind=False"
            )
        self._errors: list[float] = []
        self._checkpoints: list[dict[str, Tensor]] = []
        self.record(model)

    def record(self, model: nn.Module) -> None:
        """Keep the weights as they are now as a checkpoint, with their error on the forget set."""
        self._errors.append(float(_mistakes(model, self._forget).mean()))
        self._checkpoints.append({n: t.clone() for n, t in model.state_dict().items()})

    def carry(self, move: Move | None) -> None:
        """Move all checkpoints along."""
        if move is not None:
            self._checkpoints = [{n: move.point(n, t) for n, t in c.items()} for c in self._checkpoints]

    def apply(self, model: nn.Module) -> None:
        """Restore the checkpoint whose forget error is closest to the validation error of the final model."""
        target = float(_mistakes(model, self._validation)[self._same_class].mean())
        # Of equally close checkpoints the latest.
        best = min(range(len(self._errors)), key=lambda i: (abs(self._errors[i] - target), -i))
        model.load_state_dict(self._checkpoints[best])


def _mistakes(model: nn.Module, examples: Examples) -> Tensor:
    """1 for each example whose largest logit is not at the label, else 0; shape (n,)."""
    return (logits(model, examples).argmax(1) != examples.y).double()
