"""Maps of one pixel through batch norm as vectors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.kernels.one_pixel_norm import AsVectors, of_one_pixel, one_pixel_norms


class Everywhere(AsVectors):
    """The same without a GPU."""

    def suits(self, x: Tensor) -> bool:
        return of_one_pixel(x)


def norm(*, affine: bool = True) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    layer = nn.BatchNorm2d(5, affine=affine)
    for tensor in layer.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return layer.eval()


def images(size: int) -> Tensor:
    return torch.randn(6, 5, size, size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("size", [1, 3])
def test_it_is_the_closed_form(affine: bool, size: int) -> None:
    layer, x = norm(affine=affine), images(size).requires_grad_()
    with Everywhere():
        found = layer(x)
    own = layer.state_dict()
    wide = {name: value.reshape(1, 5, 1, 1) for name, value in own.items() if value.dim()}
    wanted = (x - wide["running_mean"]) / (wide["running_var"] + layer.eps).sqrt()
    if affine:
        wanted = wanted * wide["weight"] + wide["bias"]
    assert found.shape == x.shape
    torch.testing.assert_close(found, wanted)
    weights = images(size).cos()
    slopes = [torch.autograd.grad((y * weights).sum(), x)[0] for y in (found, wanted)]
    torch.testing.assert_close(*slopes)


def test_only_maps_of_one_pixel_in_eval_mode_become_vectors(norms: Any) -> None:
    with norms, Everywhere():
        for layer, size in ((norm(), 1), (norm(), 2), (norm().train(), 1)):
            layer(images(size))
        norm().double()(images(1).double())
    assert norms.dimensions == [2, 4, 4, 4]


def test_without_a_gpu_nothing_changes() -> None:
    layer, x = norm(), images(1)
    with one_pixel_norms():
        found = layer(x)
    assert torch.equal(found, layer(x))
    assert not AsVectors().suits(x)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_it_is_what_batch_norm_gives() -> None:
    layer, x = norm().cuda(), images(1).cuda().contiguous(memory_format=torch.channels_last)
    with one_pixel_norms():
        found = layer(x)
    assert AsVectors().suits(x)
    torch.testing.assert_close(found, layer(x))
