from __future__ import annotations

import pytest
import torch
from torch import nn

from warp_unlearning.attacks.undoing import Held
from warp_unlearning.errors import DataError, InputError


def test_the_original_is_seen_in_eval_mode_and_left_as_it_was(kit) -> None:
    model = kit.residual().float().train()
    model.stem.weight.requires_grad_(False)
    held = Held(model, kit.points(3))
    assert not held.model.training
    assert all(p.requires_grad for p in held.model.parameters())
    assert model.training
    assert not model.stem.weight.requires_grad
    assert held.x.dtype == torch.float32
    assert set(held.parameters) == {name for name, _ in model.named_parameters()}
    assert all(value.dtype == torch.float64 for value in held.weights.values())


def test_knowledge_is_made_once_for_each_original(kit) -> None:
    calls: list[Held] = []
    one, other = kit.held(kit.residual()), kit.held(kit.residual())

    def make(held: Held) -> int:
        calls.append(held)
        return len(calls)

    assert [one.once(make), one.once(make), other.once(make)] == [1, 1, 2]


@pytest.mark.parametrize(
    ("probes", "message"),
    [
        ((torch.zeros(0, 2), torch.zeros(0, dtype=torch.long)), "0 inputs"),
        ((torch.zeros(2, 2), torch.zeros(3, dtype=torch.long)), "2 inputs and 3 labels"),
        ((torch.full((1, 2), torch.nan), torch.zeros(1, dtype=torch.long)), "NaN"),
    ],
)
def test_probes_that_are_none_are_refused(probes, message) -> None:
    with pytest.raises(DataError, match=message):
        Held(nn.Linear(2, 2), probes)


def test_a_network_without_parameters_has_no_difference() -> None:
    with pytest.raises(InputError, match="no floating-point parameters"):
        Held(nn.Flatten(), (torch.zeros(1, 2), torch.zeros(1, dtype=torch.long)))
