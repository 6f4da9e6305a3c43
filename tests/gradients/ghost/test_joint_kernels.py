from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from warp_unlearning.gradients.ghost.joint_kernels import join_kernels, kernel_with_channels_last

SHAPES = [(8, 8, 3), (16, 8, 3), (8, 16, 1), (5, 3, 3), (6, 3, 3), (16, 8, 3)]


def test_every_layer_has_its_own_kernel() -> None:
    layers: list[Any] = [nn.Conv2d(wide, out, size) for out, wide, size in SHAPES]
    layers[-1] = layers[-1].to(memory_format=torch.channels_last)
    join_kernels(layers)
    for layer in layers:
        found = kernel_with_channels_last(layer, True)
        assert found is not None
        assert found.is_contiguous(memory_format=torch.channels_last)
        assert not found.requires_grad
        torch.testing.assert_close(found, layer.weight.detach(), rtol=0, atol=0)


@pytest.mark.parametrize("hooked", [True, False])
def test_kernels_that_hooks_may_change_are_not_known_before(hooked: bool) -> None:
    layer = nn.Conv2d(4, 4, 3)
    if hooked:
        layer.register_forward_pre_hook(lambda layer, args: None)
    join_kernels([layer])
    assert (kernel_with_channels_last(layer, True) is None) == hooked
    assert kernel_with_channels_last(nn.Conv2d(4, 4, 3), True) is None


def test_without_worth_they_are_given_if_they_are_known() -> None:
    layers = [nn.Conv2d(4, 4, 3) for _ in range(2)]
    join_kernels(layers)
    assert kernel_with_channels_last(layers[0], False) is None
    assert kernel_with_channels_last(layers[0], True) is not None
    assert kernel_with_channels_last(layers[1], False) is not None


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


def test_kernels_that_are_computed_are_not_known_before() -> None:
    layer = nn.Conv2d(4, 4, 3)
    parametrize.register_parametrization(layer, "weight", Doubled())
    join_kernels([layer])
    assert kernel_with_channels_last(layer, True) is None


def test_kernels_of_other_types_and_devices_are_laid_out_apart() -> None:
    layers: list[Any] = [nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3).double(), nn.Conv2d(8, 8, 3, device="meta")]
    join_kernels(layers)
    for layer in layers:
        found = kernel_with_channels_last(layer, True)
        assert found is not None
        assert (found.dtype, found.device) == (layer.weight.dtype, layer.weight.device)


def test_kernels_begin_where_libraries_read_them_fast() -> None:
    layers: list[Any] = [nn.Conv2d(3, out, 3) for out in (5, 6)]
    join_kernels(layers)
    found = [kernel_with_channels_last(layer, True) for layer in layers]
    assert [kernel is not None and kernel.storage_offset() for kernel in found] == [0, 0]


def test_a_kernel_with_channels_fastest_is_not_copied() -> None:
    layers: list[Any] = [nn.Conv2d(8, 8, 3).to(memory_format=torch.channels_last), nn.Conv2d(8, 8, 3)]
    join_kernels(layers)
    found = kernel_with_channels_last(layers[0], True)
    assert found is not None
    assert found.data_ptr() == layers[0].weight.data_ptr()
