from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.attacks.undoing import Held, NotApplicable, canonical, make_pre_step, pre_steps
from warp_unlearning.attacks.undoing.asked import Asked, asked
from warp_unlearning.attacks.undoing.canonical import Canonical
from warp_unlearning.attacks.undoing.channel_scales import ChannelScales
from warp_unlearning.attacks.undoing.span import Span
from warp_unlearning.attacks.undoing.states import checked_difference, checked_state, difference
from warp_unlearning.errors import InputError
from warp_unlearning.symmetry.rescaling import ChangeOfBasis, Permutation


def update(kit, model: nn.Module) -> nn.Module:
    return kit.stepped(model, kit.gradient(model, *kit.points(6, seed=5)), 1e-2)


@pytest.mark.parametrize("moves", [(), (ChangeOfBasis(), Permutation())])
def test_steps_that_share_find_what_each_finds_alone(kit, moves) -> None:
    model = kit.residual(width=6)
    state = kit.moved(update(kit, model), *moves, seed=2).state_dict()
    held, shared = kit.held(model), Asked(state)
    for name in pre_steps():
        alone = make_pre_step(name).prepared(kit.held(model))(dict(state))
        found = shared.after(held.prepared(make_pre_step(name)))
        assert set(found) == set(alone)
        for key, value in alone.items():
            assert torch.equal(found[key], value), (name, key)
    for key, value in kit.moved(update(kit, model), *moves, seed=2).state_dict().items():
        assert torch.equal(state[key], value), key


def test_channels_are_aligned_once_for_all_steps_after_them(kit, monkeypatch) -> None:
    made: list[int] = []

    class Counted(ChannelScales):
        def __init__(self, *given) -> None:
            made.append(1)
            super().__init__(*given)

    monkeypatch.setattr(canonical, "ChannelScales", Counted)
    model = kit.residual(width=6)
    held, shared = kit.held(model), Asked(kit.moved(update(kit, model), ChangeOfBasis(), seed=2).state_dict())
    for name in ("canonical", "canonical+span", "canonical+filter", "canonical+conservation"):
        shared.after(held.prepared(make_pre_step(name)))
    assert len(made) == 1


def test_what_alignment_leaves_alone_is_cleaned_once(kit) -> None:
    model = kit.residual(width=6)
    held = kit.held(model)
    undo = {name: held.prepared(make_pre_step(name)) for name in ("naive", "canonical", "span", "canonical+span")}
    still = Asked(update(kit, model).state_dict())
    assert still.after(undo["canonical"]).is_same(still.after(undo["naive"]))
    assert still.after(undo["canonical+span"]).is_same(still.after(undo["span"]))
    assert not still.after(undo["span"]).is_same(still.after(undo["naive"]))
    moved = Asked(kit.moved(update(kit, model), ChangeOfBasis(), seed=2).state_dict())
    assert not moved.after(undo["canonical"]).is_same(moved.after(undo["naive"]))
    assert not moved.after(undo["canonical+span"]).is_same(moved.after(undo["span"]))


def test_equal_steps_are_prepared_once(kit) -> None:
    held = kit.held(kit.residual())
    assert held.prepared(Span()) is held.prepared(Span())
    assert held.prepared(Span()) is not held.prepared(Span(energy=0.5))
    assert held.prepared(Canonical()) is not held.prepared(Canonical(reweightings=2))

    class Unhashable:
        __hash__ = None
        name = "any"

        def prepared(self, held: Held):
            return lambda unlearned: dict(unlearned)

    step = Unhashable()
    assert held.prepared(step) is not held.prepared(step)


def test_a_state_is_asked_once_and_again_where_it_fails() -> None:
    state, calls = Asked({"a": torch.ones(2)}), []

    def undo(unlearned: dict[str, Tensor]) -> dict[str, Tensor]:
        calls.append(1)
        if len(calls) == 1:
            raise NotApplicable("not yet")
        return {"a": 2 * unlearned["a"]}

    with pytest.raises(NotApplicable):
        state.after(undo)
    assert state.after(undo) is state.after(undo)
    assert len(calls) == 2
    assert state.after(undo)["a"].tolist() == [2, 2]
    assert asked(state) is state
    assert (list(state), len(state)) == (["a"], 1)
    same = {"a": state["a"]}
    assert state.is_same(same)
    assert not state.is_same({"a": torch.ones(2)})
    assert not state.is_same({**same, "b": torch.ones(1)})


def test_a_checked_state_is_nobodys_to_change(kit) -> None:
    model = kit.residual()
    held, state = kit.held(model), Asked(update(kit, model).state_dict())
    checked_state(held, state).clear()
    checked_difference(held, state).clear()
    assert set(checked_state(held, state)) == set(held.weights)
    expected = difference(model, state)
    assert set(checked_difference(held, state)) == set(expected)
    for name, value in checked_difference(held, state).items():
        assert torch.equal(value, expected[name]), name


def test_a_sum_that_overflows_is_no_infinity(kit) -> None:
    model = kit.residual()
    state = dict(model.state_dict())
    state["stem.weight"] = torch.full_like(state["stem.weight"], 1e308)
    assert bool(checked_state(kit.held(model), state)["stem.weight"].isfinite().all())
    state["head.bias"] = state["head.bias"] * torch.inf
    with pytest.raises(InputError, match=r"'head\.bias' of the unlearned state holds NaN"):
        checked_state(kit.held(model), state)
