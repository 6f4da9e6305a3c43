from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.gradients.ghost import twice
from warp_unlearning.gradients.ghost.geometry import plane
from warp_unlearning.gradients.ghost.rule import Passing
from warp_unlearning.gradients.ghost.twice import LaidOut, convolved


def test_first_and_second_derivatives() -> None:
    generator = torch.Generator().manual_seed(0)
    layer = nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2, bias=False).double()
    a = torch.randn(3, 4, 6, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    passing = Passing()
    _, geometry = plane(layer, a)

    def second(output: Tensor) -> tuple[Tensor, ...]:
        passing.outputs_only = True
        (b,) = torch.autograd.grad(output.sin().sum(), a, create_graph=True)
        passing.outputs_only = False
        return b.detach(), *torch.autograd.grad(b.square().sum(), (a, layer.weight))

    found, expected = second(convolved(a, layer.weight, geometry, passing)), second(layer(a))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def test_a_known_layout_is_used_where_the_images_have_it_or_either() -> None:
    generator = torch.Generator().manual_seed(0)
    layer = nn.Conv2d(4, 6, 3, padding=1, bias=False).double()
    images = torch.randn(3, 4, 2, 2, generator=generator, dtype=torch.float64)
    last, either = images.contiguous(memory_format=torch.channels_last), images[:, :, :1, :1].clone()
    asked: list[bool] = []

    def laid_out(known: bool) -> LaidOut:
        def give(worth: bool) -> Tensor | None:
            asked.append(worth)
            return layer.weight.detach().contiguous(memory_format=torch.channels_last) if known else None

        return give

    for known in (True, False):
        for a in (images, last, either):
            _, geometry = plane(layer, a)
            found = convolved(a, layer.weight, geometry, Passing(), laid_out(known))
            torch.testing.assert_close(found, layer(a), rtol=1e-11, atol=1e-11)
    assert asked == [True, False] * 2


@pytest.mark.parametrize("last", [True, False])
def test_the_kernel_is_laid_out_as_the_images_are(monkeypatch: pytest.MonkeyPatch, last: bool) -> None:
    layer, images = nn.Conv2d(4, 6, 3, bias=False), torch.ones(3, 4, 5, 5)
    a = images.contiguous(memory_format=torch.channels_last) if last else images
    seen: list[bool] = []
    plainly = twice.convolve

    def spy(a: Tensor, kernel: Tensor, *rest: Any) -> Tensor:
        seen.append(kernel.is_contiguous(memory_format=torch.channels_last))
        return plainly(a, kernel, *rest)

    monkeypatch.setattr(twice, "convolve", spy)
    _, geometry = plane(layer, a)
    convolved(a, layer.weight, geometry, Passing())
    assert seen == [last]


def test_a_kernel_that_is_written_over_is_noticed() -> None:
    layer, passing = nn.Conv2d(4, 6, 3, bias=False), Passing(outputs_only=True)
    a = torch.ones(3, 4, 5, 5, requires_grad=True)
    _, geometry = plane(layer, a)
    (b,) = torch.autograd.grad(convolved(a, layer.weight, geometry, passing).sum(), a, create_graph=True)
    with torch.no_grad():
        layer.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(b.square().sum(), layer.weight)
