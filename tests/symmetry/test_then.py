from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from warp_unlearning.symmetry.base import Compose
from warp_unlearning.symmetry.moves import ChannelMove, ComposedMove, MomentumReset, Move, Translation, compose
from warp_unlearning.symmetry.rescaling import ChangeOfBasis, Permutation

KINDS = ("scale", "order", "shift", "both")


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.inner(x))


def model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        stem = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()]
        return nn.Sequential(*stem, Residual(), nn.Flatten(), nn.Linear(16, 3)).double().eval()


def drawn(kind: str, net: nn.Module, generator: torch.Generator) -> Move:
    if kind == "scale":
        return ChangeOfBasis().move(net, generator=generator)
    if kind == "order":
        return Permutation().move(net, generator=generator)
    if kind == "both":
        return Compose(ChangeOfBasis(), Permutation()).move(net, generator=generator)
    shapes = {n: p.shape for n, p in net.named_parameters() if p.dim() > 1}
    return Translation({n: torch.randn(s, generator=generator, dtype=torch.float64) for n, s in shapes.items()})


@settings(max_examples=40)
@given(kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=6), seed=st.integers(0, 2**31))
def test_a_merged_move_is_the_moves_in_turn(kinds: list[str], seed: int) -> None:
    net = model()
    generator = torch.Generator().manual_seed(seed)
    moves = [drawn(kind, net, generator) for kind in kinds]
    merged: Move | None = None
    for move in moves:
        merged = compose(merged, move)
    assert merged is not None
    in_turn = ComposedMove(tuple(moves))
    for name, value in net.state_dict().items():
        if not value.is_floating_point():
            continue
        value = value + 1
        for how in ("point", "covector", "selection"):
            torch.testing.assert_close(getattr(merged, how)(name, value), getattr(in_turn, how)(name, value))
        torch.testing.assert_close(merged.inverse().point(name, merged.point(name, value)), value)
        if value.dim() > 1:
            columns = value.flatten(1).mT.contiguous()
            torch.testing.assert_close(merged.inputs(name, columns), in_turn.inputs(name, columns))


@pytest.mark.parametrize("kind", ["scale", "order", "shift"])
def test_many_moves_of_a_kind_become_one(kind: str) -> None:
    net, generator = model(), torch.Generator().manual_seed(0)
    merged: Move | None = None
    for _ in range(20):
        merged = compose(merged, MomentumReset(drawn(kind, net, generator)))
    assert isinstance(merged, Translation | ChannelMove)
    if isinstance(merged, ChannelMove):
        assert max(len(maps) for maps in merged.axes.values()) <= 2
