from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from warp_unlearning.models.networks import BasicBlock, initialise_convolutions


def _normalise(x: torch.Tensor) -> torch.Tensor:
    """Batch norm at its initial scale and shift, from its definition."""
    mean = x.mean(dim=(0, 2, 3), keepdim=True)
    variance = ((x - mean) ** 2).mean(dim=(0, 2, 3), keepdim=True)
    return (x - mean) / torch.sqrt(variance + 1e-5)


def test_the_identity_block_computes_the_residual_sum() -> None:
    block = BasicBlock(4, 4).double()
    x = torch.randn(3, 4, 6, 6, generator=torch.Generator().manual_seed(0)).double()
    inner = _normalise(F.conv2d(x, block.conv1.weight, padding=1)).clamp(min=0)
    expected = (_normalise(F.conv2d(inner, block.conv2.weight, padding=1)) + x).clamp(min=0)
    assert block.downsample is None
    torch.testing.assert_close(block(x), expected)


def test_the_strided_block_sends_the_shortcut_through_a_convolution() -> None:
    block = BasicBlock(4, 6, stride=2).double()
    x = torch.randn(3, 4, 7, 7, generator=torch.Generator().manual_seed(0)).double()
    inner = _normalise(F.conv2d(x, block.conv1.weight, stride=2, padding=1)).clamp(min=0)
    residual = _normalise(F.conv2d(inner, block.conv2.weight, padding=1))
    assert block.downsample is not None
    shortcut = _normalise(F.conv2d(x, block.downsample[0].weight, stride=2))
    assert block(x).shape == (3, 6, 4, 4)
    torch.testing.assert_close(block(x), (residual + shortcut).clamp(min=0))


def test_a_change_of_channels_alone_needs_a_downsample() -> None:
    assert BasicBlock(4, 6).downsample is not None


def test_hooks_keep_what_each_layer_returned() -> None:
    block = BasicBlock(4, 4)
    kept: dict[str, torch.Tensor] = {}
    copies: dict[str, torch.Tensor] = {}
    for name, module in block.named_children():

        def keep(_: nn.Module, __: object, output: torch.Tensor, name: str = name) -> None:
            kept[name], copies[name] = output, output.clone()

        module.register_forward_hook(keep)
    x = torch.randn(2, 4, 5, 5, generator=torch.Generator().manual_seed(1))
    before = x.clone()
    block(x)
    assert torch.equal(x, before)
    assert set(kept) == {"conv1", "bn1", "conv2", "bn2"}
    assert all(torch.equal(kept[name], copies[name]) for name in kept)


def test_convolutions_start_with_variance_two_over_fan_out() -> None:
    layer = nn.Conv2d(16, 256, 3)
    initialise_convolutions(nn.Sequential(layer))
    expected = math.sqrt(2 / (256 * 9))
    # 36,864 draws: the standard error of the deviation is 0.4 per cent; by fan_in it would be 4 times larger.
    assert abs(layer.weight.std().item() / expected - 1) < 0.03
    assert abs(layer.weight.mean().item()) < expected / 30
