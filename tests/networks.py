"""Small networks of each kind that null-space moves must deal with, and the shape of one input of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Network = tuple[Callable[[], nn.Module], tuple[int, ...]]


def smooth(n: int, shape: tuple[int, ...], seed: int) -> Tensor:
    """Images (n, *shape) in float64 whose neighbouring pixels are alike, as in photographs."""
    small = torch.randn(n, shape[0], 3, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return F.interpolate(small, shape[1:], mode="bicubic", align_corners=True)


class Calls(nn.Module):
    """Layers and parameters, and a function of them and the input."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


class Tokens(nn.Module):
    """Linear layers on tokens, one called twice, and a layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.norm = nn.Linear(6, 8), nn.Linear(8, 8, bias=False), nn.LayerNorm(8)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        x = x + torch.tanh(self.again(self.norm(x)))
        return self.last((x + torch.tanh(self.again(x))).mean(1))


def strided() -> nn.Module:
    """Stride, dilation, groups, batch norm; the rectifier leaves coordinates dead."""
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, stride=2, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 4, 3, padding=2, dilation=2, groups=2, bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(36, 3),
    )


def padded() -> nn.Module:
    """Each way to pad."""
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding="same", padding_mode="circular"),
        nn.Tanh(),
        nn.Conv2d(3, 4, (2, 3), padding=(1, 2), padding_mode="reflect", stride=(1, 2)),
        nn.Tanh(),
        nn.Conv2d(4, 3, 3, padding="same", padding_mode="replicate", dilation=2, bias=False),
        nn.Tanh(),
        nn.Conv2d(3, 4, 2, padding="valid", groups=1),
        nn.Flatten(),
        nn.Linear(48, 3),
    )


def one_dimension() -> nn.Module:
    """Convolutions of signals."""
    return nn.Sequential(
        nn.Conv1d(2, 4, 3, stride=2, padding=2),
        nn.Tanh(),
        nn.Conv1d(4, 6, 2, groups=2, padding=1, padding_mode="circular", bias=False),
        nn.BatchNorm1d(6),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(36, 3),
    )


def three_dimensions() -> nn.Module:
    """Convolutions of volumes."""
    return nn.Sequential(
        nn.Conv3d(1, 4, (1, 2, 2), padding=(1, 0, 1)),
        nn.Tanh(),
        nn.Conv3d(4, 4, 2, groups=2, dilation=(2, 1, 1)),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(24, 3),
    )


def dead() -> nn.Module:
    """On maps of one pixel eight of nine taps see padding alone."""
    return nn.Sequential(
        nn.Conv2d(2, 8, 4), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)
    )


GEOMETRIES: dict[str, Network] = {
    "strided": (strided, (2, 5, 5)),
    "padded": (padded, (2, 4, 5)),
    "one dimension": (one_dimension, (2, 7)),
    "three dimensions": (three_dimensions, (1, 2, 3, 3)),
    "dead taps": (dead, (2, 4, 4)),
    "tokens": (Tokens, (4, 6)),
}


class PlainAttention(nn.Module):
    """Attention of several heads made of linear layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries, self.keys, self.values = (nn.Linear(width, width) for _ in range(3))
        self.out_proj = nn.Linear(width, width)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Examples first."""
        q, k, v = (
            layer(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for layer, x in ((self.queries, query), (self.keys, key), (self.values, value))
        )
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return self.out_proj((weights @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A block of a transformer, its norms first."""

    def __init__(self, width: int, *, plain: bool) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = PlainAttention(width, 2) if plain else nn.MultiheadAttention(width, 2, batch_first=True)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        a = self.first(x)
        mixed = self.attention(a, a, a)
        x = x + (mixed if isinstance(mixed, Tensor) else mixed[0])
        return x + self.down(F.gelu(self.up(self.second(x))))


class VisionTransformer(nn.Module):
    """Patches of 2 × 2, a class token, two blocks; with `plain`, the same of linear layers alone."""

    def __init__(self, width: int = 8, *, plain: bool = False) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, stride=2)
        self.token, self.places = nn.Parameter(torch.randn(1, 1, width)), nn.Parameter(torch.randn(1, 10, width))
        self.blocks = nn.Sequential(*(Block(width, plain=plain) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).mT
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


class Separable(nn.Module):
    """An inverted residual block: widen, one kernel a channel, narrow."""

    def __init__(self, channels: int, wide: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU6(inplace=True),
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU6(inplace=True),
            nn.Conv2d(wide, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class Gated(nn.Module):
    """A convolution whose channels are weighed by squeeze and excitation."""

    def __init__(self, channels: int, gate: nn.Module) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.squeeze, self.excite, self.gate = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1), gate

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        return x * self.gate(self.excite(F.relu(self.squeeze(x.mean((2, 3), keepdim=True)))))


def mobile() -> nn.Module:
    """Like MobileNet: grouped kernels."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU6(inplace=True),
        Separable(6, 12),
        Separable(6, 12),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 3),
    )


def vgg() -> nn.Module:
    """A head of linear layers, wider than a batch has examples, behind convolutions."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(72, 40),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(40, 40),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(40, 3),
    )


def gated() -> nn.Module:
    """Squeeze and excitation by both gates in use."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1),
        Gated(8, nn.Sigmoid()),
        Gated(8, nn.Hardsigmoid()),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


def group_norm() -> nn.Module:
    """Groups of channels normalised."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2, padding=1, bias=False),
        nn.GroupNorm(4, 8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


ARCHITECTURES: dict[str, Network] = {
    "vision transformer": (VisionTransformer, (1, 6, 6)),
    "mobile": (mobile, (1, 12, 12)),
    "vgg": (vgg, (1, 6, 6)),
    "squeeze and excitation": (gated, (1, 6, 6)),
    "group norm": (group_norm, (1, 6, 6)),
}
