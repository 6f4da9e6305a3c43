from __future__ import annotations

import torch
from torch import Tensor, nn

from warp_unlearning.gradients.ghost.geometry import plane
from warp_unlearning.gradients.ghost.rule import Passing
from warp_unlearning.gradients.ghost.twice import convolved


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
