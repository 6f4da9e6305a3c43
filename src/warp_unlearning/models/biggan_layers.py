"""The layers of a BigGAN-deep generator, under the names that `pytorch-pretrained-biggan` has for their weights."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SIDE = 4
"""Height and width of the first features."""
COLOURS = 3
_EPSILON = 1e-4


class ConditionalNorm(nn.Module):
    """Batch norm by stored statistics, scaled by 1 + `scale`(condition) and shifted by `offset`(condition)."""

    def __init__(self, channels: int, condition: int) -> None:
        super().__init__()
        self.register_buffer("running_means", torch.zeros(channels))
        self.register_buffer("running_vars", torch.ones(channels))
        self.scale = nn.Linear(condition, channels, bias=False)
        self.offset = nn.Linear(condition, channels, bias=False)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Features of the shape of `x` (n, channels, h, w)."""
        mean, variance = cast(Tensor, self.running_means), cast(Tensor, self.running_vars)
        # One factor and one shift for each image and channel, so that the large tensor is passed over once.
        factor = (1 + self.scale(condition)) * torch.rsqrt(variance + _EPSILON)
        shift = self.offset(condition) - mean * factor
        return cast(Tensor, x * factor[:, :, None, None] + shift[:, :, None, None])


class PlainNorm(nn.Module):
    """Batch norm by stored statistics with a weight and a bias for each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("running_means", torch.zeros(channels))
        self.register_buffer("running_vars", torch.ones(channels))
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Features of the shape of `x` (n, channels, h, w)."""
        mean, variance = cast(Tensor, self.running_means), cast(Tensor, self.running_vars)
        return F.batch_norm(x, mean, variance, self.weight, self.bias, training=False, eps=_EPSILON)


class Block(nn.Module):
    """Four convolutions through a quarter of the channels, beside a shortcut that drops the channels beyond `out`."""

    def __init__(self, channels: int, out: int, condition: int, *, up: bool) -> None:
        super().__init__()
        self.up, self.out = up, out
        middle = channels // 4
        sizes = [(channels, middle, 1), (middle, middle, 3), (middle, middle, 3), (middle, out, 1)]
        for i, (a, b, kernel) in enumerate(sizes):
            self.add_module(f"bn_{i}", ConditionalNorm(a, condition))
            self.add_module(f"conv_{i}", nn.Conv2d(a, b, kernel, padding=kernel // 2))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Features (n, out, h, w), or of twice that size, of features (n, channels, h, w)."""
        inner = x
        for i in range(4):
            inner = F.relu(self.get_submodule(f"bn_{i}")(inner, condition))
            if i == 1 and self.up:
                inner = F.interpolate(inner, scale_factor=2.0, mode="nearest")
            inner = self.get_submodule(f"conv_{i}")(inner)
        shortcut = x[:, : self.out]
        return inner + (F.interpolate(shortcut, scale_factor=2.0, mode="nearest") if self.up else shortcut)


class SelfAttention(nn.Module):
    """x + γ · o(g · softmax(θᵀφ)ᵀ) with θ, φ, g and o 1x1 convolutions, φ and g pooled to half the resolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.snconv1x1_theta = nn.Conv2d(channels, channels // 8, 1, bias=False)
        self.snconv1x1_phi = nn.Conv2d(channels, channels // 8, 1, bias=False)
        self.snconv1x1_g = nn.Conv2d(channels, channels // 2, 1, bias=False)
        self.snconv1x1_o_conv = nn.Conv2d(channels // 2, channels, 1, bias=False)
        self.gamma = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Features of the shape of `x` (n, channels, h, w); the condition plays no part."""
        query = self.snconv1x1_theta(x).flatten(2)
        key = F.max_pool2d(self.snconv1x1_phi(x), 2).flatten(2)
        value = F.max_pool2d(self.snconv1x1_g(x), 2).flatten(2)
        attention = torch.softmax(query.transpose(1, 2) @ key, dim=-1)
        mixed = (value @ attention.transpose(1, 2)).reshape(len(x), -1, *x.shape[2:])
        return cast(Tensor, x + self.gamma * self.snconv1x1_o_conv(mixed))


class First(nn.Module):
    """Stage 0: the condition, which holds the latents, to features (n, channels, 4, 4)."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, latents: Tensor, condition: Tensor) -> Tensor:
        """A linear map whose output has its channels last."""
        return cast(Tensor, self.linear(condition).unflatten(1, (SIDE, SIDE, -1)).permute(0, 3, 1, 2))


class Last(nn.Module):
    """The last stage: batch norm, a convolution of which three channels are colours, tanh, and [−1, 1] to [0, 1]."""

    def __init__(self, norm: nn.Module, convolution: nn.Module, size: int) -> None:
        super().__init__()
        self.norm, self.convolution, self.size = norm, convolution, size

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Images (n, 3, size, size), averaged over areas where they are larger; the condition plays no part."""
        images = (1 + torch.tanh(self.convolution(F.relu(self.norm(x)))[:, :COLOURS])) / 2
        return (
            images if images.shape[-1] == self.size else F.interpolate(images, size=(self.size, self.size), mode="area")
        )
