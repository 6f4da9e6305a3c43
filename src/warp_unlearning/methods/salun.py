"""SalUn (Fan et al., 2024): random labels on what is forgotten, moving only the weights that matter most for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.examples import Batch, Examples, in_order
from ..data.sampling import batch_shape
from ..errors import InputError
from ..models.modes import norm_mode, predict
from ..training.constraints import Mask
from ..training.stepper import Number, Stepper
from ..training.update import Update, Updates
from .base import NormMode, Task, option, require


@dataclass(frozen=True, kw_only=True)
class SalUn:
    """Each epoch: a pass over the forget set with fresh uniform labels, then a pass over the retain set with true ones.

    Only the share `keep` of all weights with the largest |∇ CE(forget)| at the start may move; the others stay
    bit-identical, whatever weight decay and momentum would do to them.
    """

    name: ClassVar[str] = "salun"
    norm_mode: ClassVar[NormMode] = "train"
    masks: ClassVar[bool] = True

    keep: float = option(0.5, "share of the weights that may move")
    exclude_true_label: bool = option(False, "draw random labels among the other classes only")
    lr: float = option(0.013, "learning rate")
    epochs: int = option(10, "epochs")
    batch_size: int = option(256, "examples a batch")
    momentum: float = option(0.9, "momentum of SGD")
    weight_decay: float = option(5e-4, "weight decay of SGD")

    def __post_init__(self) -> None:
        require(self, positive=("lr", "keep"), shares=("keep", "momentum"), counts=("epochs", "batch_size"))
        require(self, not_negative=("weight_decay",))

    def updates(self, model: nn.Module, task: Task) -> Updates:
        """Yield after every step, under the saliency mask, on a relabelled forget batch or a retain batch."""
        if self.exclude_true_label and task.classes < 2:
            raise InputError("salun with exclude_true_label=True needs another class to draw from; the model has one")
        mask = saliency_mask(model, task.forget, keep=self.keep)
        stepper = Stepper(model, momentum=self.momentum, weight_decay=self.weight_decay, constraint=mask)

        def descend(x: Tensor, y: Tensor, lr: Number) -> dict[str, Tensor]:
            """Take one masked step down the cross-entropy of a batch."""
            loss = F.cross_entropy(predict(model, x), y)
            stepper.step(loss, lr=lr)
            return {"loss": loss}

        updates = {"forget": task.update(descend), "retain": task.update(descend)}
        labels = task.streams.generator("labels")
        count = task.batch_count("forget", self.batch_size) + task.batch_count("retain", self.batch_size)
        total = self.epochs * count
        for e in range(self.epochs):
            for i, (phase, (x, y)) in enumerate(self._schedule(task, e, labels), e * count + 1):
                loss = updates[phase](x, y, self.lr)["loss"]
                terms = {"relabelled" if phase == "forget" else "retain": loss}
                move = yield Update(i, total, e, i == (e + 1) * count, terms, mask.frozen)
                stepper.carry(move)

    def _schedule(self, task: Task, e: int, labels: torch.Generator) -> Iterator[tuple[str, Batch]]:
        """The batches of epoch `e` with their set: all forget batches with random labels, then all retain batches."""
        forget = task.batches("forget", self.batch_size, epoch=e)
        for (x, y), drawn in zip(forget, self._random_labels(task, labels), strict=True):
            yield "forget", Batch(x, (y + drawn) % task.classes if self.exclude_true_label else drawn)
        for batch in task.batches("retain", self.batch_size, epoch=e):
            yield "retain", batch

    def _random_labels(self, task: Task, generator: torch.Generator) -> Tensor:
        """Random labels (batches, size) of a pass over the forget set; offsets from true ones if those are excluded."""
        number, size = batch_shape(len(task.forget), self.batch_size)
        # An offset from 1 to classes − 1 leads to any label but the true one.
        least = 1 if self.exclude_true_label else 0
        drawn = [torch.randint(least, task.classes, (size,), generator=generator) for _ in range(number)]
        return torch.stack(drawn).to(task.forget.y.device)


def saliency_mask(model: nn.Module, forget: Examples, *, keep: float) -> Mask:
    """The share `keep` of all trainable weights with the largest |∇ CE(forget)|, in eval mode and over all layers.

    Below keep = 1 a weight at the threshold stays: one that no forget example reaches (zero) never moves, and ties may
    leave fewer than the share. At keep = 1 all may move.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    gradients = {name: torch.zeros_like(p) for name, p in trained.items()}
    with norm_mode(model, "eval"):
        for index in in_order(len(forget), 256):
            x, y = forget.take(index)
            loss = F.cross_entropy(model(x), y, reduction="sum")
            of_batch = torch.autograd.grad(loss, list(trained.values()), materialize_grads=True)
            for total, gradient in zip(gradients.values(), of_batch, strict=True):
                total += gradient
    saliency = torch.cat([gradient.abs().flatten() for gradient in gradients.values()])
    count = round(keep * saliency.numel())
    threshold = saliency.new_tensor(-1.0)  # Below every saliency: all weights may move.
    if count < saliency.numel():
        threshold = saliency.kthvalue(saliency.numel() - count).values
    return Mask({name: gradient.abs() > threshold for name, gradient in gradients.items()})
