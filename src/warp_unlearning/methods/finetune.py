"""Fine-tuning on what is kept: forgetting by neglect, the weakest reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from ..training.training import Recipe, Training
from ..training.update import Updates
from .protocol import NormMode, Task, option, require


@dataclass(frozen=True, kw_only=True)
class Finetune:
    """Trains the original further on the retain set alone. No forget example is ever read."""

    name: ClassVar[str] = "finetune"
    norm_mode: ClassVar[NormMode] = "train"
    reads_forget: ClassVar[bool] = False
    forgets: ClassVar[bool] = False

    epochs: int = option(5, "passes over the retain set")
    batch_size: int = option(128, "examples a batch")
    lr: float = option(0.01, "learning rate at the start of a cosine schedule")
    momentum: float = option(0.9, "momentum of SGD")
    weight_decay: float = option(5e-4, "weight decay of SGD")

    def __post_init__(self) -> None:
        require(self, positive=("lr",), shares=("momentum",), counts=("epochs", "batch_size"))
        require(self, not_negative=("weight_decay",))

    def updates(self, model: nn.Module, task: Task) -> Updates:
        """The updates of a training that starts where the model is."""
        recipe = Recipe(
            epochs=self.epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
        )
        return Training(model, task.retain, recipe=recipe, streams=task.streams, compute=task.compute).updates()
