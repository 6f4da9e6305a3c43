from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from warp_unlearning.methods.anchor import Anchor
from warp_unlearning.symmetry.moves import AxisMap, ChannelMove, apply_move


def drift(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator).double())


def rescaling(order: list[int], scale: list[float]) -> ChannelMove:
    index, factor = torch.tensor(order), torch.tensor(scale, dtype=torch.float64)
    rows = (AxisMap(0, index, factor),)
    return ChannelMove(
        {
            "0.weight": (AxisMap(0, index),),
            "1.weight": rows,
            "1.bias": rows,
            "3.weight": (AxisMap(1, index, 1 / factor),),
        }
    )


def test_the_distance_and_its_gradient_follow_moves(model: nn.Module) -> None:
    """Two moves that do not commute, with drift between them: distances are measured where the run started."""
    model[3].bias.requires_grad_(False)
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    anchor = Anchor(model)
    assert float(anchor.distance_squared(model).detach()) == 0
    moves = [rescaling([1, 2, 3, 4, 5, 0], [2, 3, 4, 5, 6, 7]), rescaling([5, 4, 3, 2, 1, 0], [1, 0.5, 0.25, 2, 8, 3])]
    for seed, move in enumerate(moves):
        drift(model, seed)
        apply_move(model, move)
        anchor.carry(move)
        anchor.carry(None)
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    found = anchor.distance_squared(model)
    gradients = torch.autograd.grad(found, list(trained.values()))

    back = {n: p.detach() for n, p in trained.items()}
    for move in reversed(moves):
        back = {n: move.inverse().point(n, value) for n, value in back.items()}
    assert float(found.detach()) == pytest.approx(float(sum(((v - start[n]) ** 2).sum() for n, v in back.items())))
    for (name, value), gradient in zip(back.items(), gradients, strict=True):
        expected = 2 * (value - start[name])
        for move in moves:
            expected = move.covector(name, expected)
        torch.testing.assert_close(gradient, expected)


def test_the_anchor_does_not_move_with_the_weights(kit: Any, model: nn.Module) -> None:
    anchor = Anchor(model)
    drift(model, 3)
    fresh = kit.network()
    expected = sum(
        float(((a - b) ** 2).sum().detach()) for a, b in zip(model.parameters(), fresh.parameters(), strict=True)
    )
    assert float(anchor.distance_squared(model).detach()) == pytest.approx(expected)
