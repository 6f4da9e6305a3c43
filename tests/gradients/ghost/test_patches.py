"""Patches pasted back, beside autograd's derivative of taking them."""

from __future__ import annotations

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from warp_unlearning.gradients.ghost.geometry import Geometry
from warp_unlearning.gradients.ghost.patches import _pasted, _patches

Pair = tuple[int, int]


def pairs(least: int, most: int) -> st.SearchStrategy[Pair]:
    return st.tuples(st.integers(least, most), st.integers(least, most))


@settings(max_examples=150)
@given(size=pairs(1, 5), stride=pairs(1, 4), dilation=pairs(1, 3), padding=pairs(0, 2), image=pairs(3, 9))
def test_every_patch_goes_back_to_its_place(
    size: Pair, stride: Pair, dilation: Pair, padding: Pair, image: Pair
) -> None:
    spare = [image[k] + 2 * padding[k] - dilation[k] * (size[k] - 1) - 1 for k in (0, 1)]
    assume(min(spare) >= 0)
    geometry = Geometry(4, 3, size, stride, padding, dilation, 1)
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(2, 3, *image, generator=generator, dtype=torch.float64, requires_grad=True)
    taken = _patches(a, geometry)
    found = torch.randn(taken.shape, generator=generator, dtype=torch.float64)
    (expected,) = torch.autograd.grad(taken, a, found)
    g = torch.empty(2, 4, *(rest // s + 1 for rest, s in zip(spare, stride, strict=True)))
    torch.testing.assert_close(_pasted(a.detach(), g, found, geometry), expected)
