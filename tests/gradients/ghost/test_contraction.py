from __future__ import annotations

import pytest
import torch

from warp_unlearning.gradients.ghost.contraction import gram_is_cheaper, outer_norm


@pytest.mark.parametrize(("positions", "gram"), [(1, True), (2, True), (9, False)])
def test_value_and_derivatives_by_either_contraction(positions: int, gram: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    p = torch.randn(3, positions, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    g = torch.randn(3, positions, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    assert gram_is_cheaper(positions, 5, 4) is gram
    expected = torch.einsum("nto,ntd->nod", g, p).square().sum((1, 2))
    torch.testing.assert_close(outer_norm(p, g), expected, rtol=1e-12, atol=0)
    assert torch.autograd.gradcheck(outer_norm, (p, g))
