"""Moves of the kit's own network: the channels inside each residual block, permuted or rescaled.

Between a block's first batch norm and its second convolution, a channel multiplied by τ > 0 passes the ReLU as it is
and is divided by τ where the convolution reads it; in whatever order the channels stand. Both hold for batch norm in
train and in eval mode.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..models.networks import SmallResNet
from ..symmetry.moves import AxisMap, ChannelMove


def permutation(model: SmallResNet, *, generator: torch.Generator) -> ChannelMove:
    """The hidden channels of every block in a random order."""
    axes: dict[str, tuple[AxisMap, ...]] = {}
    for block, channels in _blocks(model).items():
        order = torch.randperm(channels, generator=generator)
        for name in ("conv1.weight", "bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.running_var"):
            axes[f"{block}.{name}"] = (AxisMap(0, order),)
        axes[f"{block}.conv2.weight"] = (AxisMap(1, order),)
    return ChannelMove(axes)


def rescaling(model: SmallResNet, *, generator: torch.Generator, spread: float = 0.8) -> ChannelMove:
    """The hidden channels of every block multiplied by factors uniform on 1 ± spread."""
    axes: dict[str, tuple[AxisMap, ...]] = {}
    for block, channels in _blocks(model).items():
        scale: Tensor = 1 + spread * (2 * torch.rand(channels, generator=generator, dtype=torch.float64) - 1)
        axes[f"{block}.bn1.weight"] = axes[f"{block}.bn1.bias"] = (AxisMap(0, None, scale),)
        axes[f"{block}.conv2.weight"] = (AxisMap(1, None, 1 / scale),)
    return ChannelMove(axes)


def _blocks(model: SmallResNet) -> dict[str, int]:
    """Hidden channels of each block, by the block's name."""
    return {
        name.removesuffix(".conv1.weight"): len(value)
        for name, value in model.named_parameters()
        if name.endswith(".conv1.weight")
    }
