from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import torch
from torch import nn

from warp_unlearning.symmetry.move import Translation
from warp_unlearning.symmetry.null_move import NullMove
from warp_unlearning.symmetry.null_space import NullSpace


def drawn(kit: Any) -> tuple[nn.Module, NullMove]:
    model = kit.built(lambda: nn.Sequential(nn.Linear(9, 12), nn.Tanh(), nn.Linear(12, 3)))
    probe = kit.probe(kit.normal(4, 9), forget=(kit.normal(3, 9, seed=1), torch.arange(3)))
    return model, NullSpace(step_size=0.2).move(model, generator=kit.generator(), probe=probe)


def test_it_is_a_translation_of_the_weights_alone(kit: Any) -> None:
    model, move = drawn(kit)
    assert isinstance(move, Translation)
    value = kit.normal(12, 9)
    torch.testing.assert_close(move.point("0.weight", value), value + move.shifts["0.weight"])
    assert move.point("elsewhere", value) is value
    for how in (move.covector, move.selection, move.inputs):
        assert how("0.weight", value) is value
    assert set(move.shifts) == set(dict(model.named_parameters()))


@pytest.mark.parametrize("factor", [0.5, -1.0, 0.0])
def test_another_length_goes_the_same_way_and_knows_no_energy(kit: Any, factor: float) -> None:
    _, move = drawn(kit)
    part = move.scaled(factor)
    assert isinstance(part, NullMove)
    for name, shift in move.shifts.items():
        torch.testing.assert_close(part.shifts[name], factor * shift, rtol=0, atol=0)
    assert move.energies is not None
    assert part.energies is None
    assert (part.bases, part.left, part.notes) == (move.bases, move.left, move.notes)
    assert move.scaled(1.0).energies == move.energies


def test_the_inverse_leads_back(kit: Any) -> None:
    model, move = drawn(kit)
    back = kit.moved(kit.moved(model, move), move.inverse()).state_dict()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(back[name], value, rtol=0, atol=1e-15)
    with pytest.raises(FrozenInstanceError):
        move.notes = ()  # type: ignore[misc]


def test_a_shift_takes_the_type_of_what_it_moves() -> None:
    move = Translation({"w": torch.ones(2, dtype=torch.float64)})
    assert move.point("w", torch.zeros(2)).dtype == torch.float32
    assert torch.equal(move.inverse().point("w", move.point("w", torch.zeros(2))), torch.zeros(2))
