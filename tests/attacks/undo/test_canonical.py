from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from warp_unlearning.attacks.undo.base import Held, NotApplicable, difference
from warp_unlearning.attacks.undo.canonical import Canonical, ChannelOrder, balanced
from warp_unlearning.symmetry.permutation import Permutation
from warp_unlearning.symmetry.rescaling import ChangeOfBasis

MOVES = {"scales": (ChangeOfBasis(),), "order": (Permutation(),), "both": (ChangeOfBasis(), Permutation())}


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    width=st.integers(2, 6),
    norm=st.sampled_from(["none", "affine", "bare"]),
    inner=st.sampled_from(["plain", "grouped", "depthwise"]),
    flat=st.booleans(),
    moves=st.sampled_from(sorted(MOVES)),
)
def test_moves_of_the_original_are_undone_exactly(kit, seed, width, norm, inner, flat, moves) -> None:
    model = kit.residual(seed, width=width, norm=norm, inner=inner, flat=flat)
    moved = kit.moved(model, *MOVES[moves], seed=seed)
    undone = Canonical().prepared(kit.held(model, 2))(moved.state_dict())
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            torch.testing.assert_close(undone[name], value, rtol=1e-8, atol=1e-8, msg=name)


@pytest.mark.parametrize("moves", sorted(MOVES))
@pytest.mark.parametrize("norm", ["none", "affine"])
@pytest.mark.parametrize("reweightings", [0, 2])
def test_an_update_survives(kit, moves, norm, reweightings) -> None:
    model = kit.residual(norm=norm, inner="grouped", width=6)
    gradient = kit.gradient(model, *kit.points(1, seed=5))
    updated = kit.stepped(model, gradient, 1e-2)
    moved = kit.moved(updated, *MOVES[moves], seed=2)
    undone = Canonical(reweightings=reweightings).prepared(kit.held(model, 2))(moved.state_dict())
    assert kit.cosine(difference(model, moved.state_dict()), gradient) < 0.3
    assert kit.cosine(difference(model, undone), gradient) > (0.995 if reweightings == 0 else 0.95)


def test_statistics_that_an_update_changed_are_not_trusted(kit) -> None:
    model = kit.residual(width=6)
    gradient = kit.gradient(model, *kit.points(8, seed=5))
    updated = kit.stepped(model, gradient, 1e-2)
    for norm in updated.norms:
        norm.running_mean.add_(0.2 * kit.normal(len(norm.running_mean)))
        norm.running_var.mul_(1.2)
    moved = kit.moved(updated, ChangeOfBasis(), seed=2)
    undone = Canonical().prepared(kit.held(model, 2))(moved.state_dict())
    # The factors of what enters a batch norm are read off the weights, and lose what the update had along them.
    assert kit.cosine(difference(model, undone), gradient) > 0.8
    plain = {name: updated.state_dict()[name].double() for name in undone}
    largest = max(float((undone[name] - plain[name]).abs().max()) for name in undone if "running" not in name)
    assert largest < 0.02


def test_where_nothing_was_rescaled_the_update_stays_whole(kit) -> None:
    model = kit.residual()
    updated = kit.stepped(model, {n: kit.normal(*p.shape) for n, p in model.named_parameters()}, 1e-2)
    undone = Canonical(reweightings=2).prepared(kit.held(model, 2))(updated.state_dict())
    kit.require_equal(updated.state_dict(), undone)


def test_a_large_move_beside_the_rescaling_is_told_from_it(kit) -> None:
    model = kit.residual(width=6)
    noisy = deepcopy(model)
    with torch.no_grad():
        noisy.last.weight.add_(0.3 * kit.normal(*noisy.last.weight.shape))
    moved = kit.moved(noisy, ChangeOfBasis(), seed=4)

    def error(reweightings: int) -> float:
        undone = Canonical(reweightings=reweightings).prepared(kit.held(model, 2))(moved.state_dict())
        away = difference(noisy, undone)
        return kit.norm({name: value for name, value in away.items() if name != "last.weight"})

    assert error(2) < 0.2 * error(0)


def test_order_alone_is_undone_where_scales_are_pinned(kit) -> None:
    model = kit.settled(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)))
    held = Held(model, kit.points(2, shape=(4,)))
    undone = Canonical().prepared(held)(kit.moved(model, Permutation()).state_dict())
    kit.require_equal(undone, model.state_dict())


def test_without_hidden_channels_it_is_not_applicable(kit) -> None:
    with pytest.raises(NotApplicable, match="no channel"):
        Canonical().prepared(Held(kit.settled(nn.Sequential(nn.Linear(4, 4))), kit.points(2, shape=(4,))))


def test_float32_states_are_undone_to_their_precision(kit) -> None:
    model = kit.residual().float()
    undone = Canonical().prepared(kit.held(model, 2))(kit.moved(model, *MOVES["both"]).state_dict())
    for name, value in undone.items():
        assert value.dtype == torch.float64
        torch.testing.assert_close(value.float(), model.state_dict()[name], rtol=1e-4, atol=1e-5)


def test_the_order_is_found_through_scales_and_noise(kit) -> None:
    model = kit.residual(width=6, inner="grouped", flat=True)
    noisy = kit.stepped(model, {n: kit.normal(*p.shape, seed=9) for n, p in model.named_parameters()}, 0.3)
    scaled = kit.moved(noisy, ChangeOfBasis(spread=0.9))
    held = kit.held(model, 2)
    found = ChannelOrder(held).undone(kit.moved(scaled, Permutation(), seed=3).state_dict())
    kit.require_equal(found, scaled.state_dict())


def test_the_order_is_found_through_scales_of_any_size_and_much_noise(kit) -> None:
    # Weights as they are, or slices beside channels out of order, lead astray in three of these networks.
    for seed in range(100, 110):
        inner = [layer for _ in range(3) for layer in (nn.ReLU(), nn.Linear(16, 16))]
        model = kit.settled(nn.Sequential(nn.Linear(8, 16), *inner, nn.ReLU(), nn.Linear(16, 4)), seed)
        named = {name: p.detach() for name, p in model.named_parameters()}
        noise = {name: kit.normal(*p.shape, seed=seed + 9) * p.std() for name, p in named.items()}
        noisy = kit.stepped(model, noise, 0.6 * kit.norm(named))
        scaled = kit.moved(noisy, ChangeOfBasis(law="lognormal", spread=2.0), seed=seed)
        held = Held(model, kit.points(2, shape=(8,)))
        found = ChannelOrder(held).undone(kit.moved(scaled, Permutation(), seed=seed).state_dict())
        kit.require_equal(found, scaled.state_dict())


def test_a_first_layer_that_says_nothing_is_settled_by_the_next(kit) -> None:
    # Rows of one number have no direction, only columns of what reads them do.
    model = kit.settled(nn.Sequential(nn.Linear(1, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)))
    held = Held(model, kit.points(2, shape=(1,)))
    found = ChannelOrder(held).undone(kit.moved(model, Permutation(), seed=1).state_dict())
    kit.require_equal(found, model.state_dict())


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.integers(2, 6), st.integers(0, 10_000))
def test_balanced_weights_ignore_scales_and_follow_orders(kit, out: int, width: int, seed: int) -> None:
    weight = kit.normal(out, width, 3, seed=seed)
    rows, columns = kit.normal(out, seed=seed + 1).exp(), kit.normal(width, seed=seed + 2).exp()
    order = torch.randperm(out, generator=torch.Generator().manual_seed(seed))
    moved = (weight * rows[:, None, None] * columns[None, :, None])[order]
    torch.testing.assert_close(balanced(moved), balanced(weight)[order], rtol=1e-4, atol=1e-4)
    energies = balanced(weight).square().sum(2)
    torch.testing.assert_close(energies.sum(1), torch.ones(out, dtype=torch.float64))
    torch.testing.assert_close(energies.sum(0), torch.full((width,), out / width).double(), rtol=1e-3, atol=0)


def test_blocks_are_balanced_by_themselves(kit) -> None:
    weight = kit.normal(6, 3, seed=1)
    apart = torch.cat([balanced(part) for part in weight.chunk(2)])
    torch.testing.assert_close(balanced(weight, blocks=2), apart, rtol=1e-6, atol=1e-6)


def test_rows_and_columns_of_zeros_stay(kit) -> None:
    weight = kit.normal(4, 3, seed=2)
    weight[1], weight[:, 2] = 0, 0
    found = balanced(weight)
    assert bool(found.isfinite().all())
    assert bool((found[1] == 0).all())
    assert bool((found[:, 2] == 0).all())
    torch.testing.assert_close(found[[0, 2, 3]].square().sum(1), torch.ones(3, dtype=torch.float64))
