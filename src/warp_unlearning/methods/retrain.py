"""Retraining without the forgotten examples: the reference that unlearning is measured against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from ..models.reinitialise import reinitialise
from ..training.recipe import Recipe
from ..training.training import Training
from ..training.update import Updates
from .protocol import NormMode, Task, option, require


@dataclass(frozen=True, kw_only=True)
class Retrain:
    """Fresh random weights, trained on the retain set alone. No forget example is ever read."""

    name: ClassVar[str] = "retrain"
    norm_mode: ClassVar[NormMode] = "train"
    reads_forget: ClassVar[bool] = False

    epochs: int = option(20, "passes over the retain set; use those of the original's training")
    batch_size: int = option(64, "examples a batch")
    lr: float = option(0.05, "learning rate at the start of a cosine schedule")
    momentum: float = option(0.9, "momentum of SGD")
    weight_decay: float = option(5e-4, "weight decay of SGD")
    crop_padding: int = option(0, "pixels by which random crops may be shifted")
    flip: bool = option(False, "mirror images at random")
    fill: tuple[float, ...] = option((0.0,), "value of a black pixel, per channel, after normalisation")

    def __post_init__(self) -> None:
        require(self, positive=("lr",), shares=("momentum",), counts=("epochs", "batch_size"))

    def updates(self, model: nn.Module, task: Task) -> Updates:
        """The updates of a training from scratch."""
        reinitialise(model, generator=task.streams.generator("initial weights"))
        recipe = Recipe(
            epochs=self.epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            crop_padding=self.crop_padding,
            flip=self.flip,
        )
        return Training(model, task.retain, recipe=recipe, streams=task.streams, fill=self.fill).updates()
