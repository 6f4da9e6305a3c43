"""The images of a study of reconstruction, by what they are for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..data.examples import TensorExamples
from ..data.preprocess import ImageData, Pixels, pixels_of
from ..errors import InputError
from ..models.modes import choose_device
from .reconstruction_settings import ReconstructionSettings


@dataclass(frozen=True, eq=False)
class Part:
    """Images (n, channels, height, width) in [0, 1] and labels (n,)."""

    images: Tensor
    y: Tensor

    def __getitem__(self, index: Any) -> Part:
        return Part(self.images[index], self.y[index])

    def __len__(self) -> int:
        return len(self.y)

    def to(self, device: torch.device) -> Part:
        """The same on a device."""
        return Part(self.images.to(device), self.y.to(device))


@dataclass(frozen=True, eq=False)
class Pictures:
    """What the model learned from, and images it never saw: decoys, probes, and the rest, that a generator learns from;
    and how a model sees them all.
    """

    pixels: Pixels
    learned: Part
    decoys: Part
    probes: Part
    rest: Part

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return 1 + max(int(part.y.max()) for part in (self.learned, self.decoys, self.probes, self.rest) if len(part))

    def examples(self, part: Part) -> TensorExamples:
        """What the model sees of it."""
        return TensorExamples(self.pixels.inputs(part.images), part.y)


def pictures_of(data: ImageData, settings: ReconstructionSettings) -> Pictures:
    """Those of a data set."""
    pixels, train = pixels_of(data), data.train
    if settings.shuffled:
        # Digits come writer by writer: in that order decoys would be other people's than the targets.
        train = train.select(torch.randperm(len(train), generator=torch.Generator().manual_seed(settings.seed)))
    learned, test = (Part(pixels.images(examples.x), examples.y) for examples in (train, data.test))
    return divided(learned, test, pixels, settings)


def divided(train: Part, test: Part, pixels: Pixels, settings: ReconstructionSettings) -> Pictures:
    """The first images of `train` to learn from, and those after them with `test` for all else."""
    device, n = choose_device(settings.device), settings.learned
    others = Part(torch.cat([train.images[n:], test.images]), torch.cat([train.y[n:], test.y])).to(device)
    seen = settings.decoys, settings.decoys + settings.probes
    if len(train) < n or len(others) < seen[1]:
        raise InputError(
            f"{n} images to learn from, {settings.decoys} decoys and {settings.probes} probes of {len(train)} training "
            f"and {len(test)} test images; ask for fewer"
        )
    return Pictures(pixels, train[:n].to(device), others[: seen[0]], others[seen[0] : seen[1]], others[seen[1] :])
