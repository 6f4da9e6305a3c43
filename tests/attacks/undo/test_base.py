from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.attacks.undo import make_pre_step, pre_steps
from warp_unlearning.attacks.undo.base import CachedState, Held, at_length_of, checked_state, difference, undone_model
from warp_unlearning.errors import DataError, InputError
from warp_unlearning.symmetry.permutation import Permutation
from warp_unlearning.symmetry.rescaling import ChangeOfBasis


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


@pytest.mark.parametrize(
    ("probes", "message"),
    [
        ((torch.zeros(0, 2), torch.zeros(0, dtype=torch.long)), "0 inputs"),
        ((torch.zeros(2, 2), torch.zeros(3, dtype=torch.long)), "2 inputs and 3 labels"),
        ((torch.full((1, 2), torch.nan), torch.zeros(1, dtype=torch.long)), "NaN"),
    ],
)
def test_unusable_probes_are_refused(probes, message) -> None:
    with pytest.raises(DataError, match=message):
        Held(nn.Linear(2, 2), probes)


def test_a_network_without_parameters_is_refused() -> None:
    with pytest.raises(InputError, match="no floating-point parameters"):
        Held(nn.Flatten(), (torch.zeros(1, 2), torch.zeros(1, dtype=torch.long)))


def test_differences_are_of_parameters_in_float64(kit) -> None:
    model = kit.residual().float()
    state = {name: value + 1 if value.is_floating_point() else value for name, value in model.state_dict().items()}
    found = difference(model, state)
    assert set(found) == {name for name, _ in model.named_parameters()}
    for value in found.values():
        assert value.dtype == torch.float64
        torch.testing.assert_close(value, torch.ones_like(value), rtol=0, atol=1e-6)


def test_an_undone_model_is_the_original_with_another_state(kit) -> None:
    model = kit.residual().float().train()
    state = {name: 2 * value.double() for name, value in model.state_dict().items() if value.is_floating_point()}
    found = undone_model(model, state)
    assert found.training
    assert found is not model
    for name, value in found.state_dict().items():
        expected = model.state_dict()[name]
        assert value.dtype == expected.dtype
        assert torch.equal(value, 2 * expected if value.is_floating_point() else expected)
    with pytest.raises(InputError, match="'other'"):
        undone_model(model, {"other": torch.zeros(1)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("stem.weight"), "lacks 'stem.weight'"),
        (lambda s: s.update({"stem.weight": torch.zeros(1)}), "shape"),
        (
            lambda s: s.update({"stem.bias": s["stem.bias"] * torch.nan}),
            "'stem.bias' of the unlearned",
        ),
    ],
)
def test_states_that_do_not_fit_are_refused(kit, change, message) -> None:
    model = kit.residual()
    state = dict(model.state_dict())
    change(state)
    for use in (lambda: difference(model, state), lambda: checked_state(kit.held(model), state)):
        with pytest.raises(InputError, match=message):
            use()


def test_shared_parameters_keep_one_value(kit) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.two(torch.relu(self.one(x))))

    model = Tied().double()
    held = Held(model, kit.points(6, shape=(4,), classes=3))
    other = undone_model(model, {name: 1.1 * value for name, value in model.state_dict().items()})
    undone = make_pre_step("span").prepared(held)(other.state_dict())
    assert torch.equal(undone["one.weight"], undone["two.weight"])
    loaded = undone_model(model, undone)
    assert torch.equal(loaded.one.weight, undone["one.weight"])


def test_a_cleaned_difference_gets_the_given_length(kit) -> None:
    given = {"a": torch.tensor([3.0]), "b": torch.tensor([[4.0]])}
    assert kit.norm(at_length_of({"a": torch.tensor([0.1])}, given)) == pytest.approx(5)
    assert kit.norm(at_length_of({"a": torch.zeros(1)}, given)) == 0


@pytest.mark.parametrize("moves", [(), (ChangeOfBasis(), Permutation())])
def test_steps_that_share_a_cached_state_find_the_same_as_each_alone(kit, moves) -> None:
    model = kit.residual(width=6)
    state = kit.moved(update(kit, model), *moves, seed=2).state_dict()
    before = {name: value.clone() for name, value in state.items()}
    held, shared = kit.held(model), CachedState(state)
    for name in pre_steps():
        alone = make_pre_step(name).prepared(kit.held(model))(dict(state))
        found = shared.after(held.prepared(make_pre_step(name)))
        assert set(found) == set(alone)
        kit.require_equal(found, alone)
    kit.require_equal(state, before)


def test_where_alignment_changes_nothing_a_chain_is_its_second_step(kit) -> None:
    model = kit.residual(width=6)
    held = kit.held(model)
    undo = {name: held.prepared(make_pre_step(name)) for name in ("naive", "canonical", "span", "canonical+span")}
    still = CachedState(update(kit, model).state_dict())
    assert still.after(undo["canonical"]).shares_all(still.after(undo["naive"]))
    assert still.after(undo["canonical+span"]).shares_all(still.after(undo["span"]))
    assert not still.after(undo["span"]).shares_all(still.after(undo["naive"]))
    moved = CachedState(kit.moved(update(kit, model), ChangeOfBasis(), seed=2).state_dict())
    assert not moved.after(undo["canonical"]).shares_all(moved.after(undo["naive"]))
    assert not moved.after(undo["canonical+span"]).shares_all(moved.after(undo["span"]))


def update(kit, model: nn.Module) -> nn.Module:
    return kit.stepped(model, kit.gradient(model, *kit.points(6, seed=5)), 1e-2)
