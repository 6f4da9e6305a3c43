"""Helpers for torch modules: train and eval modes to be put back later, and a convolution's padding and memory layout.
Symmetries, null-space moves and ghost norms share them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def modes_of(model: nn.Module) -> list[tuple[nn.Module, bool]]:
    """Every module, and whether it is in train mode."""
    return [(module, module.training) for module in model.modules()]


def set_mode(model: nn.Module, *, training: bool) -> None:
    """Put the whole model in that mode, where some module of it is not."""
    if any(mode != training for _, mode in modes_of(model)):
        model.train(training)


def restore_modes(modes: list[tuple[nn.Module, bool]]) -> None:
    """Put each module back in the mode it had."""
    for module, training in modes:
        if module.training != training:
            module.training = training


def padded(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, x: Tensor) -> Tensor:
    """Pad x as the convolution does before it multiplies; x itself where it adds nothing."""
    sides = padding_of(layer)
    if not any(sides):
        return x
    return F.pad(x, sides, mode="constant" if layer.padding_mode == "zeros" else layer.padding_mode)


def padding_of(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> list[int]:
    """How much the layer adds before and after each axis, the last axis first, as `F.pad` takes it."""
    if layer.padding_mode != "zeros":
        return layer._reversed_padding_repeated_twice
    if isinstance(layer.padding, str):
        sizes = zip(layer.dilation, layer.kernel_size, strict=True)
        totals = [dilation * (taps - 1) if layer.padding == "same" else 0 for dilation, taps in sizes]
        sides = [(total // 2, total - total // 2) for total in totals]
    else:
        sides = [(width, width) for width in layer.padding]
    return [width for pair in reversed(sides) for width in pair]


def strictly_channels_last(x: Tensor) -> bool:
    """Whether images lie in memory with channels running fastest and in no other order."""
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
