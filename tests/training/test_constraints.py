from __future__ import annotations

import pytest
import torch
from tests.oracles.symmetry import normal
from tests.training.small import hidden_move, network, points
from torch import Tensor, nn
from torch.nn import functional as F

from warp_unlearning.symmetry.layer_inputs import InputBasis
from warp_unlearning.symmetry.moves import AxisMap, ChannelMove, Translation, apply_move
from warp_unlearning.training.constraints import InputComplement, Mask
from warp_unlearning.training.stepper import Stepper


def bases(**columns: Tensor) -> dict[str, InputBasis]:
    """Bases of layers without groups all of whose inputs are reached."""
    return {
        name: InputBasis(name, None, b[None], (b.shape[1],), torch.ones(1, len(b), dtype=torch.bool), 1.0, len(b))
        for name, b in columns.items()
    }


def orthonormal(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.linalg.qr(normal(rows, columns, seed=seed))[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_a_mask_holds_its_entries_to_the_bit(dtype: torch.dtype, max_norm: float | None) -> None:
    model, data = network(dtype=dtype), points(dtype=dtype)
    generator = torch.Generator().manual_seed(3)
    movable = {n: torch.rand(p.shape, generator=generator) < 0.5 for n, p in model.named_parameters()}
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    mask = Mask(movable)
    stepper = Stepper(model, momentum=0.9, weight_decay=0.1, constraint=mask, max_norm=max_norm)
    for _ in range(30):
        stepper.step(F.cross_entropy(model(data.x), data.y), lr=0.05)
    for name, p in model.named_parameters():
        assert torch.equal(p == before[name], ~movable[name]), name
        assert torch.equal(mask.frozen[name], ~movable[name])


def test_a_mask_holds_against_steps_that_are_not_finite() -> None:
    before = torch.tensor([-0.0, 1.0, 2.0, 3.0])
    after = torch.tensor([5.0, torch.inf, torch.nan, 4.0])
    found = Mask({"w": torch.tensor([False, False, False, True])}).limit("w", after, before)
    assert found.tolist() == [0.0, 1.0, 2.0, 4.0]
    assert found[0].signbit()


def test_a_mask_follows_a_permutation() -> None:
    model, order = network(), [3, 0, 5, 1, 4, 2]
    movable = {n: normal(*p.shape, seed=i) > 0 for i, (n, p) in enumerate(model.named_parameters())}
    mask = Mask(movable)
    mask.carry(hidden_move(order))
    assert torch.equal(mask.movable["0.weight"], movable["0.weight"][order])
    assert torch.equal(mask.movable["1.bias"], movable["1.bias"][order])
    assert torch.equal(mask.movable["3.weight"], movable["3.weight"][:, order])
    assert torch.equal(mask.movable["3.bias"], movable["3.bias"])


def test_responses_to_protected_inputs_stay_the_same() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 4)).double()
    columns = {"0.weight": orthonormal(18, 7), "2.weight": orthonormal(12, 5)}
    x, y = normal(6, 2, 4, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    stepper = Stepper(model, momentum=0.9, weight_decay=0.1, constraint=InputComplement(bases(**columns)))
    for _ in range(20):
        stepper.step(F.cross_entropy(model(x), y), lr=0.05)
    for name, p in model.named_parameters():
        if name not in columns:
            assert torch.equal(p, before[name])
            continue
        moved = (p.detach() - before[name]).flatten(1)
        assert moved.norm() > 1e-2
        assert (moved @ columns[name]).abs().max() < 1e-12


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 6])
def test_the_projection_takes_back_only_the_protected_part(rank: int) -> None:
    basis = orthonormal(6, rank)
    constraint, before, after = InputComplement(bases(w=basis)), normal(3, 6, seed=1), normal(3, 6, seed=2)
    explicit = (after - before) @ (torch.eye(6, dtype=torch.float64) - basis @ basis.T)
    torch.testing.assert_close(constraint.limit("w", after, before), before + explicit)
    torch.testing.assert_close(
        constraint.limit_gradient("w", after), after @ (torch.eye(6, dtype=torch.float64) - basis @ basis.T)
    )
    assert torch.equal(constraint.limit("other", after, before), before)
    assert torch.equal(constraint.limit_gradient("other", after), torch.zeros_like(after))


@pytest.mark.parametrize("rank", [3, 5])
def test_bases_follow_a_move_with_the_inputs(rank: int) -> None:
    """After a move that rescales, exactly the moved inputs are protected, by an orthonormal basis."""
    model = network()
    inputs = normal(6, rank, seed=4)
    constraint = InputComplement(bases(**{"3.weight": torch.linalg.qr(inputs)[0]}))
    order, scale = [3, 0, 5, 1, 4, 2], torch.tensor([2.0, 0.5, 4.0, 1.0, 3.0, 0.25], dtype=torch.float64)
    move = hidden_move(order, scale)
    constraint.carry(move)
    moved_inputs = inputs[order] * scale.unsqueeze(1)
    basis = constraint.bases["3.weight"].basis[0]
    torch.testing.assert_close(basis.T @ basis, torch.eye(rank, dtype=torch.float64))
    apply_move(model, move)
    before = model[3].weight.detach().clone()
    step = constraint.limit("3.weight", before + normal(3, 6, seed=5), before) - before
    assert step.norm() > 0.1
    assert (step @ moved_inputs).abs().max() < 1e-12


def test_groups_that_trade_places_take_their_bases_along() -> None:
    """Four groups of two rows, each of which reads inputs of its own; the third never sees its first coordinate."""
    inputs = normal(4, 9, 3, seed=2)
    inputs[2, 0] = 0
    reached = (inputs != 0).any(2)
    basis = InputBasis("w", None, torch.linalg.qr(inputs)[0] * reached[..., None], (3,) * 4, reached, 1.0, 3)
    constraint = InputComplement({"w": basis})
    order = torch.tensor([2, 3, 0, 1, 6, 7, 4, 5])
    constraint.carry(ChannelMove({"w": (AxisMap(0, order, torch.arange(1.0, 9.0).double()),)}))
    moved = inputs[[1, 0, 3, 2]]
    step = constraint.limit_gradient("w", normal(8, 1, 3, 3, seed=5)).reshape(4, 2, 9)
    assert step.norm() > 1
    assert (step @ moved).abs().max() < 1e-12
    assert torch.equal(constraint.bases["w"].reached, (moved != 0).any(2))


def test_a_move_that_leaves_inputs_leaves_the_basis() -> None:
    basis = orthonormal(6, 5)
    constraint = InputComplement(bases(w=basis))
    constraint.carry(Translation({"w": normal(3, 6)}))
    assert torch.equal(constraint.bases["w"].basis[0], basis)
