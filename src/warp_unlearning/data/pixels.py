"""Images with values in [0, 1], and the inputs that a model sees of them: x = (image − mean) / std in each channel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import isfinite

import torch
from torch import Tensor

from ..errors import InputError
from .dataset import ImageData


@dataclass(frozen=True)
class Pixels:
    """The shape (channels, height, width) of an image and the moments of its channels."""

    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.shape) != 3 or min(self.shape) < 1:
            raise InputError(f"images have shape {self.shape}; give (channels, height, width)")
        if not len(self.mean) == len(self.std) == self.shape[0]:
            raise InputError(
                f"there are {len(self.mean)} means and {len(self.std)} deviations for images of {self.shape[0]} "
                "channels; give one of each for a channel"
            )
        for m, s in zip(self.mean, self.std, strict=True):
            if not isfinite(m) or not isfinite(s) or s <= 0:
                raise InputError(
                    f"a channel has the mean {m} and the deviation {s}; give finite numbers, above 0 the last"
                )

    def inputs(self, images: Tensor) -> Tensor:
        """What the model sees of images (..., channels, height, width)."""
        return (images - self._of(self.mean, images)) / self._of(self.std, images)

    def images(self, inputs: Tensor) -> Tensor:
        """The images of inputs, not clamped."""
        return inputs * self._of(self.std, inputs) + self._of(self.mean, inputs)

    def _of(self, values: tuple[float, ...], like: Tensor) -> Tensor:
        return _column(values, like.dtype, like.device)


@lru_cache(maxsize=32)
def _column(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    # Kept, for a copy to a GPU cannot be part of a captured graph; and so made outside of inference mode.
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype, device=device)[:, None, None]


def pixels_of(data: ImageData) -> Pixels:
    """Those of a data set of images."""
    if len(data.shape) != 3:
        raise InputError(f"an example of {data.name} has shape {data.shape}; images are (channels, height, width)")
    return Pixels((data.shape[0], data.shape[1], data.shape[2]), data.mean, data.std)
