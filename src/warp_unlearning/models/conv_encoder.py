"""The encoder that a convolutional generator is trained with: images to the mean and log-variance of their latents."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from .conv_generator import group_norm, resolutions, stage_channels


class DownBlock(nn.Module):
    """shortcut(x) + conv(silu(norm(conv(silu(norm(x)))))), then halved in height and width by averages of four."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = group_norm(channels_in), group_norm(channels_out)
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, padding=1)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1)
        self.shortcut = nn.Conv2d(channels_in, channels_out, 1) if channels_in != channels_out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Features (n, channels_out, h / 2, w / 2) of features (n, channels_in, h, w)."""
        inner = self.conv1(F.silu(self.norm1(x)))
        inner = self.conv2(F.silu(self.norm2(inner)))
        return F.avg_pool2d(cast(Tensor, self.shortcut(x) + inner), 2)


class ConvEncoder(nn.Module):
    """q(z | x) = N(mean, exp(log variance)), the mirror image of a generator of the same `shape`, `latent`, `width`."""

    def __init__(self, *, shape: tuple[int, int, int], latent: int, width: int) -> None:
        super().__init__()
        sizes = resolutions(shape[1], shape[2])
        channels = stage_channels(len(sizes), width)[::-1]
        self.first = nn.Conv2d(shape[0], channels[0], 3, padding=1)
        self.blocks = nn.Sequential(*(DownBlock(a, b) for a, b in pairwise(channels)))
        self.norm = group_norm(channels[-1])
        self.last = nn.Linear(channels[-1] * sizes[0][0] * sizes[0][1], 2 * latent)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance (n, latent) of the latents of images (n, channels, h, w) with values in [0, 1]."""
        features = F.silu(self.norm(self.blocks(self.first(2 * images - 1))))
        mean, log_variance = self.last(features.flatten(1)).chunk(2, dim=1)
        return mean, log_variance
