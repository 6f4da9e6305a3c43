"""NegGrad+ (Kurmanji et al., 2023): descend on what is kept, ascend on what is forgotten, in one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..models.modes import predict
from ..symmetry.moves import Move, compose
from ..training.scoring import losses
from ..training.stepper import Number, Stepper
from ..training.update import Update, Updates, cosine
from .base import NormMode, Task, option, require


@dataclass(frozen=True, kw_only=True)
class NegGradPlus:
    """Minimises α [CE(retain) + (anchor/2) ‖θ − θ₀‖²] − (1 − α) CE(forget); an epoch is one pass over the retain set.

    CE(forget) has no upper bound, and with batch norm in eval mode its ascent can ruin the model; `saturate` bounds it.
    """

    name: ClassVar[str] = "ngp"

    alpha: float = option(0.95, "weight of the retain loss; 1 - alpha weighs the forget loss")
    lr: float = option(0.01, "learning rate at the start")
    epochs: int = option(5, "passes over the retain set")
    batch_size: int = option(256, "examples a batch, of the retain and of the forget set each")
    momentum: float = option(0.9, "momentum of SGD")
    weight_decay: float = option(0.0, "weight decay of SGD")
    anchor: float = option(0.0, "weight of the squared distance to the original weights")
    saturate: bool = option(False, "stop pushing a forget example once its loss has reached the validation loss")
    max_norm: float | None = option(None, "clip the gradient to this norm")
    norm_mode: NormMode = option("train", "batch norm while updating: train or eval")

    def __post_init__(self) -> None:
        require(self, positive=("lr", "max_norm"), shares=("alpha", "momentum"), counts=("epochs", "batch_size"))
        require(self, not_negative=("weight_decay", "anchor"), choices={"norm_mode": get_args(NormMode)})

    def updates(self, model: nn.Module, task: Task) -> Updates:
        """One step a retain batch, each beside a forget batch."""
        stepper = Stepper(model, momentum=self.momentum, weight_decay=self.weight_decay, max_norm=self.max_norm)
        anchor = Anchor(model) if self.anchor else None
        ceiling = self._ceiling(task)

        def descend(x: Tensor, y: Tensor, forget_x: Tensor, forget_y: Tensor, lr: Number) -> dict[str, Tensor]:
            each = F.cross_entropy(predict(model, forget_x), forget_y, reduction="none")
            if ceiling is not None:
                each = torch.minimum(each, ceiling)
            terms = {"retain": F.cross_entropy(predict(model, x), y), "forget": each.mean()}
            loss = self.alpha * terms["retain"] - (1 - self.alpha) * terms["forget"]
            if anchor is not None:
                terms["anchor"] = 0.5 * anchor.distance_squared(model)
                loss = loss + self.alpha * self.anchor * terms["anchor"]
            stepper.step(loss, lr=lr)
            return terms

        update = task.update(descend)
        forget = task.batches("forget", self.batch_size)
        count = task.batch_count("retain", self.batch_size)
        of = self.epochs * count
        for e in range(self.epochs):
            for i, retain in enumerate(task.batches("retain", self.batch_size, epoch=e), e * count + 1):
                terms = update(*retain, *next(forget), self.lr * cosine((i - 1) / of))
                moved = yield Update(i, of, e, i == (e + 1) * count, terms)
                stepper.carry(moved)
                if anchor is not None and moved is not None:
                    anchor.carry(moved)
                    update.forget()

    def _ceiling(self, task: Task) -> Tensor | None:
        if not self.saturate:
            return None
        return losses(task.original, task.require_validation("ngp with saturate=True")).mean()


class Anchor:
    """The squared distance ‖T⁻¹(θ) − θ₀‖² of the trainable parameters from where they started, with T all moves since:
    a move does not change it.
    """

    def __init__(self, model: nn.Module) -> None:
        self._start = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
        self._back: Move | None = None

    def distance_squared(self, model: nn.Module) -> Tensor:
        """Differentiable with respect to the parameters of `model`."""
        terms = []
        for name, value in model.named_parameters():
            if name in self._start:
                pulled = value if self._back is None else self._back.point(name, value)
                terms.append((pulled - self._start[name]).square().sum())
        return torch.stack(terms).sum()

    def carry(self, move: Move | None) -> None:
        """Undo one more move before measuring."""
        if move is not None:
            self._back = move.inverse() if self._back is None else compose(move.inverse(), self._back)
