"""How a model is trained: SGD with momentum under a cosine schedule, with the settings of the paper and small ones."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InputError
from .precision import Precision


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of one training; the learning rate is annealed by a cosine, once an epoch."""

    epochs: int = 20
    batch_size: int = 64
    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 5e-4
    crop_padding: int = 0
    flip: bool = False
    precision: Precision = "auto"

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.lr <= 0 or not 0 <= self.momentum < 1 or self.weight_decay < 0 or self.crop_padding < 0:
            raise InputError(
                f"lr={self.lr}, momentum={self.momentum}, weight_decay={self.weight_decay}, "
                f"crop_padding={self.crop_padding}; lr must be positive, momentum in [0, 1), the others not negative"
            )


RECIPES = {
    "small": Recipe(),
    # 23,750 CIFAR-10 images, ResNet-18 with the ImageNet stem: test accuracy 0.815 to 0.820.
    "paper": Recipe(epochs=91, batch_size=256, lr=0.1, crop_padding=4, flip=True),
}
