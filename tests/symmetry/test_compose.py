from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.errors import InputError
from warp_unlearning.models.mlp import MLP
from warp_unlearning.symmetry.change_of_basis import ChangeOfBasis
from warp_unlearning.symmetry.compose import Compose
from warp_unlearning.symmetry.move import AxisMap, ChannelMove, Move, apply_move
from warp_unlearning.symmetry.permutation import Permutation


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def draw(model: nn.Module, seed: int = 5) -> Move:
    return Compose(ChangeOfBasis(), Permutation(), ChangeOfBasis(law="lognormal", spread=0.5)).move(
        model, generator=torch.Generator().manual_seed(seed)
    )


def test_a_composition_is_its_parts_in_turn() -> None:
    model = MLP(inputs=6, classes=3, hidden=(5, 4)).double()
    move = draw(model)
    parts = move.moves  # type: ignore[attr-defined]
    assert len(parts) == 3
    value, labels, columns = normal(4, 5), normal(4, 5) > 0, normal(5, 2, seed=1)
    name = "layers.2.weight"
    first, second, third = parts
    assert torch.equal(move.point(name, value), third.point(name, second.point(name, first.point(name, value))))
    assert torch.equal(move.selection(name, labels), second.selection(name, labels))
    assert not torch.equal(move.selection(name, labels), labels)
    back = move.inverse()
    torch.testing.assert_close(back.point(name, move.point(name, value)), value)
    torch.testing.assert_close(back.covector(name, move.covector(name, value)), value)
    torch.testing.assert_close(back.inputs(name, move.inputs(name, columns)), columns)
    assert torch.equal(back.selection(name, move.selection(name, labels)), labels)
    pairing = (move.covector(name, value) * move.point(name, normal(4, 5, seed=2))).sum()
    torch.testing.assert_close(pairing, (value * normal(4, 5, seed=2)).sum())


def test_inputs_follow_the_layer_that_reads_them() -> None:
    model = MLP(inputs=6, classes=3, hidden=(5, 4)).double()
    move, x = draw(model), normal(7, 6)
    moved = deepcopy(model)
    apply_move(moved, move)
    hidden, moved_hidden = model.layers[:2](x), moved.layers[:2](x)
    torch.testing.assert_close(move.inputs("layers.2.weight", hidden.mT), moved_hidden.mT)


class Doubling:
    """Remembers the weights it was drawn for, and doubles them."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def move(self, model: nn.Module, *, generator: torch.Generator) -> Move:
        self.seen.append(model.state_dict()["weight"].clone())
        return ChannelMove({"weight": (AxisMap(0, None, torch.full((2,), 2.0)),)})


def test_each_symmetry_sees_the_model_as_the_ones_before_left_it() -> None:
    model, doubling = nn.Linear(3, 2), Doubling()
    weight = model.weight.detach().clone()
    Compose(doubling, doubling, doubling).move(model, generator=torch.Generator())
    for seen, factor in zip(doubling.seen, (1, 2, 4), strict=True):
        assert torch.equal(seen, factor * weight)
    assert torch.equal(model.weight, weight)


def test_no_symmetry_is_refused() -> None:
    with pytest.raises(InputError, match="at least one"):
        Compose()
