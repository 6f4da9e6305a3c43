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
        """Yield after every step: down the loss of a retain batch and up that of a forget batch, at once."""
        stepper = Stepper(model, momentum=self.momentum, weight_decay=self.weight_decay, max_norm=self.max_norm)
        start_distance = Anchor(model) if self.anchor else None
        forget_loss_cap = self._forget_loss_cap(task)

        def update_weights(x: Tensor, y: Tensor, forget_x: Tensor, forget_y: Tensor, lr: Number) -> dict[str, Tensor]:
            """Take one step on a retain batch (x, y) and a forget batch; returns the terms of its loss."""
            forget_losses = F.cross_entropy(predict(model, forget_x), forget_y, reduction="none")
            if forget_loss_cap is not None:
                forget_losses = torch.minimum(forget_losses, forget_loss_cap)
            terms = {"retain": F.cross_entropy(predict(model, x), y), "forget": forget_losses.mean()}
            loss = self.alpha * terms["retain"] - (1 - self.alpha) * terms["forget"]
            if start_distance is not None:
                terms["anchor"] = 0.5 * start_distance.distance_squared(model)
                loss = loss + self.alpha * self.anchor * terms["anchor"]
            stepper.step(loss, lr=lr)
            return terms

        update = task.update(update_weights)
        forget = task.batches("forget", self.batch_size)
        count = task.batch_count("retain", self.batch_size)
        total = self.epochs * count
        for e in range(self.epochs):
            for i, retain in enumerate(task.batches("retain", self.batch_size, epoch=e), e * count + 1):
                terms = update(*retain, *next(forget), self.lr * cosine((i - 1) / total))
                move = yield Update(i, total, e, i == (e + 1) * count, terms)
                stepper.carry(move)
                if start_distance is not None and move is not None:
                    start_distance.carry(move)
                    update.forget()

    def _forget_loss_cap(self, task: Task) -> Tensor | None:
        """The mean loss on the validation set, at which a saturated forget loss stops rising."""
        if not self.saturate:
            return None
        return losses(task.original, task.require_validation("ngp with saturate=True")).mean()


class Anchor:
    """Measures ‖T⁻¹(θ) − θ₀‖², the squared distance of the trainable parameters from their start θ₀ in the original's
    basis, with T all moves since: a move does not change it.
    """

    def __init__(self, model: nn.Module) -> None:
        self._start = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
        self._move_back: Move | None = None

    def distance_squared(self, model: nn.Module) -> Tensor:
        """The squared distance, differentiable with respect to the parameters of `model`."""
        terms = []
        for name, value in model.named_parameters():
            if name in self._start:
                in_original_basis = value if self._move_back is None else self._move_back.point(name, value)
                terms.append((in_original_basis - self._start[name]).square().sum())
        return torch.stack(terms).sum()

    def carry(self, move: Move | None) -> None:
        """Add a move to those that are undone before measuring."""
        if move is not None:
            self._move_back = move.inverse() if self._move_back is None else compose(move.inverse(), self._move_back)
