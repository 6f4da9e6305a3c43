from __future__ import annotations

import pytest
import torch
from torch import Tensor

from warp_unlearning.gradients.ghost import affine_norms
from warp_unlearning.gradients.ghost.affine_norms import AffineUse

SHAPES = [(4, 3, 5, 6), (4, 2), (4, 7, 5), (4, 3, 5, 6), (4, 2), (4, 3, 5, 6), (4, 3, 2, 2), (4, 2, 3, 2, 2)]


def drawn_uses(*, last: bool) -> list[AffineUse]:
    generator = torch.Generator().manual_seed(0)
    form = torch.channels_last if last else torch.contiguous_format
    uses = []
    for shape in SHAPES:
        a, g = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
        if len(shape) == 4:
            a, g = (x.contiguous(memory_format=form) for x in (a, g))
        mean, r = torch.rand(2, shape[1], generator=generator, dtype=torch.float64)
        uses.append(AffineUse(a.requires_grad_(), g.requires_grad_(), mean, r))
    return uses


def by_definition(use: AffineUse, name: str) -> Tensor:
    shape = (-1, *[1] * (use.a.dim() - 2))
    normal = (use.a - use.mean.reshape(shape)) * use.r.reshape(shape)
    each = use.g * normal if name == "weight" else use.g
    return each.reshape(*each.shape[:2], -1).sum(2).square().sum(1)


@pytest.mark.parametrize("names", [["weight"], ["bias"], ["weight", "bias"]])
@pytest.mark.parametrize("stacked", [0, 10**9])
@pytest.mark.parametrize("last", [True, False])
def test_layers_of_several_shapes(monkeypatch: pytest.MonkeyPatch, names: list[str], stacked: int, last: bool) -> None:
    monkeypatch.setattr(affine_norms, "STACKED", stacked)
    uses = drawn_uses(last=last)
    found = affine_norms.affine_norms(uses, names)
    expected = torch.stack([by_definition(use, name) for use in uses for name in names]).sum(0)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    inputs = [x for use in uses for x in (use.a, use.g)]
    weights = torch.linspace(0.5, 1.5, 4, dtype=torch.float64)
    pairs = [
        torch.autograd.grad(n @ weights, inputs, allow_unused=True, materialize_grads=True) for n in (found, expected)
    ]
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


def test_inputs_without_gradient() -> None:
    uses = drawn_uses(last=True)
    for use in uses:
        use.a.requires_grad_(False)
    gradients = [use.g for use in uses]
    found, expected = (
        torch.autograd.grad(n.sum(), gradients)
        for n in (affine_norms.affine_norms(uses, ["weight"]), sum(by_definition(use, "weight") for use in uses))
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


def test_some_inputs_without_gradient() -> None:
    uses = drawn_uses(last=True)
    for use in uses:
        use.g.requires_grad_(False)
    # Those of one shape lie at 0, 3 and 5.
    for index in (3, 5):
        uses[index].a.requires_grad_(False)
    inputs = [use.a for use in uses if use.a.requires_grad]
    found, expected = (
        torch.autograd.grad(n.sum(), inputs)
        for n in (affine_norms.affine_norms(uses, ["weight"]), sum(by_definition(use, "weight") for use in uses))
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("count", "expected"), [(2, [2]), (3, [1, 1, 1])])
def test_layers_are_stacked_while_they_are_small(
    monkeypatch: pytest.MonkeyPatch, count: int, expected: list[int]
) -> None:
    images = torch.empty(4, 3, 5, 6)
    monkeypatch.setattr(affine_norms, "STACKED", 2 * images.numel())
    assert [block.layers for block in affine_norms._blocks([count], [images] * count)] == expected
