"""A small convolutional generator: residual blocks that double the resolution, one stage for each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import gcd
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import InputError
from .option_checks import require_positive
from .staged import generate

_SMALLEST = 4


def resolutions(height: int, width: int) -> list[tuple[int, int]]:
    """Heights and widths from the smallest to the whole image; each is half of the next, none is below 4.

    >>> resolutions(32, 32)
    [(4, 4), (8, 8), (16, 16), (32, 32)]
    >>> resolutions(28, 14)
    [(14, 7), (28, 14)]
    """
    found = [(height, width)]
    while all(size % 2 == 0 and size // 2 >= _SMALLEST for size in found[0]):
        found.insert(0, (found[0][0] // 2, found[0][1] // 2))
    return found


def stage_channels(count: int, width: int) -> list[int]:
    """Channels at each of `count` resolutions, from the smallest: `width` at the largest, at most 4 times as many.

    >>> stage_channels(4, 64)
    [256, 256, 128, 64]
    """
    return [width * min(4, 2**below) for below in reversed(range(count))]


def group_norm(channels: int) -> nn.GroupNorm:
    """Normalisation of an image by itself, so that no other image of a batch matters."""
    return nn.GroupNorm(gcd(8, channels), channels)


class UpBlock(nn.Module):
    """shortcut(x) + conv(silu(norm(conv(silu(norm(x)))))), x first doubled in height and width if `up`.

    With `conditions` the second norm is scaled by 1 + a and shifted by b, both linear in the condition (n, conditions).
    """

    def __init__(self, channels_in: int, channels_out: int, *, up: bool, conditions: int | None = None) -> None:
        super().__init__()
        self.up = up
        self.norm1, self.norm2 = group_norm(channels_in), group_norm(channels_out)
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, padding=1)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1)
        self.shortcut = nn.Conv2d(channels_in, channels_out, 1) if channels_in != channels_out else nn.Identity()
        self.modulation = nn.Linear(conditions, 2 * channels_out) if conditions else None

    def forward(self, x: Tensor, condition: Tensor | None = None) -> Tensor:
        """Features (n, channels_out, h, w), or of twice that size, of features (n, channels_in, h, w)."""
        if self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        inner = self.norm2(self.conv1(F.silu(self.norm1(x))))
        if self.modulation is not None:
            scale, shift = self.modulation(condition)[:, :, None, None].chunk(2, dim=1)
            inner = inner * (1 + scale) + shift
        return cast(Tensor, self.shortcut(x) + self.conv2(F.silu(inner)))


class FirstStage(nn.Module):
    """Latents (n, latent) to features (n, channels, height, width) of the smallest resolution."""

    def __init__(self, latent: int, channels: int, size: tuple[int, int], *, conditions: int | None) -> None:
        super().__init__()
        self.shape = (channels, *size)
        self.linear = nn.Linear(latent, channels * size[0] * size[1])
        self.block = UpBlock(channels, channels, up=False, conditions=conditions)

    def forward(self, latents: Tensor, condition: Tensor | None = None) -> Tensor:
        """A linear map and a residual block."""
        return cast(Tensor, self.block(self.linear(latents).unflatten(1, self.shape), condition))


class LastStage(nn.Module):
    """Features of the whole resolution to images, sigmoid(conv(silu(norm(x))))."""

    def __init__(self, channels_in: int, channels_out: int, *, conditions: int | None) -> None:
        super().__init__()
        self.norm = group_norm(channels_in)
        self.conv = nn.Conv2d(channels_in, channels_out, 3, padding=1)
        self.modulation = nn.Linear(conditions, 2 * channels_in) if conditions else None

    def forward(self, x: Tensor, condition: Tensor | None = None) -> Tensor:
        """Images (n, channels_out, h, w) with values in (0, 1)."""
        inner = self.norm(x)
        if self.modulation is not None:
            scale, shift = self.modulation(condition)[:, :, None, None].chunk(2, dim=1)
            inner = inner * (1 + scale) + shift
        return torch.sigmoid(self.conv(F.silu(inner)))


class ConvGenerator(nn.Module):
    """Images of `shape` (channels, height, width) from latents of `latent` numbers, in stages.

    Stage 0 gives features of the smallest resolution (4x4 where the size allows), each next stage doubles it, with
    `width` channels at the end and up to 4 times as many before, and the last makes the image. With `classes` every
    stage also sees a learned embedding of the label.
    """

    def __init__(
        self, *, shape: tuple[int, int, int], latent: int = 128, width: int = 64, classes: int | None = None
    ) -> None:
        super().__init__()
        if len(shape) != 3:
            raise InputError(f"images have shape {tuple(shape)}; give (channels, height, width)")
        named = dict(zip(("channels", "height", "width of the image"), shape, strict=True))
        require_positive(
            {**named, "latent": latent, "width": width, **({} if classes is None else {"classes": classes})}
        )
        self.latent, self.image_shape, self.classes = (latent,), (shape[0], shape[1], shape[2]), classes
        self.width = width
        conditions = None if classes is None else latent
        self.embedding = None if classes is None else nn.Embedding(classes, latent)
        sizes = resolutions(shape[1], shape[2])
        channels = stage_channels(len(sizes), width)
        first = FirstStage(latent, channels[0], sizes[0], conditions=conditions)
        blocks = [UpBlock(a, b, up=True, conditions=conditions) for a, b in pairwise(channels)]
        self.blocks = nn.ModuleList([first, *blocks, LastStage(channels[-1], shape[0], conditions=conditions)])

    @property
    def stages(self) -> Sequence[nn.Module]:
        """One for each resolution, and one that makes the image."""
        return list(self.blocks)

    @property
    def options(self) -> dict[str, object]:
        """What builds one alike, as plain data."""
        return {"shape": list(self.image_shape), "latent": self.latent[0], "width": self.width, "classes": self.classes}

    def condition(self, latents: Tensor, labels: Tensor) -> Tensor:
        """The embeddings (n, latent) of labels (n,)."""
        if self.embedding is None:
            raise InputError("this generator was built without classes and takes no labels; leave them out")
        return cast(Tensor, self.embedding(labels))

    def forward(self, latents: Tensor, labels: Tensor | None = None) -> Tensor:
        """The images (n, channels, height, width) of latents (n, latent)."""
        return generate(self, latents, labels)
