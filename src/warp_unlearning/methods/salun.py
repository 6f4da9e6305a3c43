"""SalUn (Fan et al., 2024): random labels on what is forgotten, moving only the weights that matter most for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.examples import Examples, Given, in_order, taken
from ..data.sampling import batch_shape, shuffled
from ..errors import InputError
from ..models.modes import norm_mode, predict
from ..training.constraints import Mask
from ..training.stepper import Number, Stepper
from ..training.update import Update, Updates
from .protocol import NormMode, Task, option, require


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
        """One step a batch, forget batches first in each epoch."""
        if self.exclude_true_label and task.classes < 2:
            raise InputError("salun with exclude_true_label=True needs another class to draw from; the model has one")
        mask = saliency_mask(model, task.forget, keep=self.keep)
        stepper = Stepper(model, momentum=self.momentum, weight_decay=self.weight_decay, constraint=mask)

        def descend(x: Tensor, y: Tensor, lr: Number) -> dict[str, Tensor]:
            loss = F.cross_entropy(predict(model, x), y)
            stepper.step(loss, lr=lr)
            return {"loss": loss}

        updates = {"forget": task.repeated(descend), "retain": task.repeated(descend)}
        labels = task.streams.generator("labels")
        batches = [batch_shape(len(s), self.batch_size)[0] for s in (task.forget, task.retain)]
        step, of = 0, self.epochs * sum(batches)
        for e in range(self.epochs):
            for position, (phase, (x, y)) in enumerate(self._schedule(task, e, labels), 1):
                loss = updates[phase](x, y, self.lr)["loss"]
                step += 1
                terms = {"relabelled" if phase == "forget" else "retain": loss}
                moved = yield Update(step, of, e, position == sum(batches), terms, mask.frozen)
                stepper.carry(moved)

    def _schedule(self, task: Task, e: int, labels: torch.Generator) -> Iterator[tuple[str, tuple[Given, Given]]]:
        forget, retain = (
            shuffled(examples, self.batch_size, generator=task.streams.generator(phase, e))
            for phase, examples in (("forget", task.forget), ("retain", task.retain))
        )
        for (x, y), drawn in zip(forget, self._random_labels(task, labels), strict=True):
            yield "forget", (x, (taken(y) + drawn) % task.classes if self.exclude_true_label else drawn)
        yield from (("retain", batch) for batch in retain)

    def _random_labels(self, task: Task, generator: torch.Generator) -> Tensor:
        """Labels for the batches of a pass over the forget set, or how far to go on from the true ones; sent to the
        device all at once.
        """
        number, size = batch_shape(len(task.forget), self.batch_size)
        least = 1 if self.exclude_true_label else 0
        drawn = [torch.randint(least, task.classes, (size,), generator=generator) for _ in range(number)]
        return torch.stack(drawn).to(task.forget.y.device)


def saliency_mask(model: nn.Module, forget: Examples, *, keep: float) -> Mask:
    """The share `keep` of all trainable weights, ranked over the whole network, with the largest |∇ CE(forget)| in eval
    mode.

    A weight with the threshold's own saliency does not move, so weights that no forget example reaches (zero) never do.
    """
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    parameters = [p for p in model.parameters() if p.requires_grad]
    saliency = [torch.zeros_like(p) for p in parameters]
    with norm_mode(model, "eval"):
        for index in in_order(len(forget), 256):
            x, y = forget.take(index)
            loss = F.cross_entropy(model(x), y, reduction="sum")
            parts = torch.autograd.grad(loss, parameters, materialize_grads=True)
            for total, part in zip(saliency, parts, strict=True):
                total += part
    flat = torch.cat([s.abs().flatten() for s in saliency])
    kept = round(keep * flat.numel())
    threshold = flat.kthvalue(flat.numel() - kept).values if kept < flat.numel() else flat.new_tensor(-1.0)
    return Mask({n: s.abs() > threshold for n, s in zip(names, saliency, strict=True)})
