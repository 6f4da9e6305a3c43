"""Maps and moves against entry-by-entry sums, dense matrices and the pairing of gradients with steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracles.symmetry import normal
from torch import Tensor, nn

from warp_unlearning.symmetry.base import Compose
from warp_unlearning.symmetry.moves import (
    AxisMap,
    BlockMap,
    ChannelMove,
    ComposedMove,
    HeadMap,
    MomentumReset,
    Move,
    Translation,
    apply_move,
    compose,
)
from warp_unlearning.symmetry.permutation import Permutation
from warp_unlearning.symmetry.rescaling import ChangeOfBasis


def vector(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@st.composite
def axis_maps(draw: st.DrawFn, axis: int, length: int) -> AxisMap:
    order = draw(st.none() | st.permutations(range(length)).map(torch.tensor))
    positive = st.floats(0.1, 10)
    signed = st.tuples(positive, st.sampled_from([-1.0, 1.0])).map(lambda pair: pair[0] * pair[1])
    scale = draw(st.none() | st.lists(signed, min_size=length, max_size=length).map(vector))
    return AxisMap(axis, order, scale)


SHAPE = (4, 3, 2, 2)
moves = st.tuples(axis_maps(0, 4), axis_maps(1, 3)).map(lambda maps: ChannelMove({"w": maps}))


@settings(deadline=None)
@given(moves, st.integers(0, 1000))
def test_each_entry_goes_where_its_axes_say_and_all_else_follows(move: ChannelMove, seed: int) -> None:
    value, rows, columns = normal(*SHAPE, seed=seed), *move.axes["w"]
    expected = torch.empty(SHAPE, dtype=torch.float64)
    for i in range(4):
        for j in range(3):
            from_i = i if rows.order is None else int(rows.order[i])
            from_j = j if columns.order is None else int(columns.order[j])
            factor = (1.0 if rows.scale is None else float(rows.scale[i])) * (
                1.0 if columns.scale is None else float(columns.scale[j])
            )
            expected[i, j] = factor * value[from_i, from_j]
    torch.testing.assert_close(move.point("w", value), expected)
    # A step along a gradient changes the loss by as much as before.
    step = normal(*SHAPE, seed=seed + 1)
    after = float((move.covector("w", value) * move.point("w", step)).sum())
    assert after == pytest.approx(float((value * step).sum()), rel=1e-9, abs=1e-9)
    # A mask marks the same entries.
    chosen = value > 0.3
    followed = move.selection("w", chosen)
    assert followed.dtype == torch.bool
    kept = move.point("w", torch.where(chosen, value, 0.0))
    torch.testing.assert_close(torch.where(followed, move.point("w", value), 0.0), kept)
    # W′ p′ = A (W p): inputs undo the in-axis and the response follows the out-axis.
    inputs = normal(3 * 4, 5, seed=seed + 2)
    response = move.point("w", value).flatten(1) @ move.inputs("w", inputs)
    torch.testing.assert_close(response, move.axes["w"][0].apply(value.flatten(1) @ inputs))
    back = move.inverse()
    torch.testing.assert_close(back.point("w", move.point("w", value)), value)
    torch.testing.assert_close(move.point("w", back.point("w", value)), value)
    torch.testing.assert_close(back.covector("w", move.covector("w", value)), value)
    assert torch.equal(back.selection("w", followed), chosen)
    torch.testing.assert_close(back.inputs("w", move.inputs("w", inputs)), inputs)


def test_tensors_not_named_stay_and_a_basis_may_be_empty() -> None:
    value, order = normal(3, 3), torch.tensor([2, 0, 1])
    move = ChannelMove({"w": (AxisMap(0, order),), "in": (AxisMap(1, order),)})
    for how in (move.point, move.covector, move.selection, move.inputs):
        assert how("other", value) is value
    assert move.inputs("in", torch.zeros(12, 0)).shape == (12, 0)


@settings(deadline=None)
@given(
    st.lists(st.floats(0, 5), min_size=3, max_size=3),
    st.lists(st.floats(0.2, 5), min_size=3, max_size=3),
    st.permutations(range(3)),
)
def test_running_variances_scale_with_their_offset(variance: list[float], scale: list[float], order: list[int]) -> None:
    """The deviation √(v + ε) that batch norm divides by scales exactly, even where v is smaller than ε."""
    epsilon = 1e-2
    move = ChannelMove({"v": (AxisMap(0, torch.tensor(order), vector(scale) ** 2),)}, {"v": epsilon})
    moved = move.point("v", vector(variance))
    for i in range(3):
        expected = scale[i] * (variance[order[i]] + epsilon) ** 0.5
        assert float(moved[i] + epsilon) ** 0.5 == pytest.approx(expected, rel=1e-9)
    torch.testing.assert_close(move.inverse().point("v", moved), vector(variance))


def test_each_block_goes_its_own_way() -> None:
    blocks = BlockMap((AxisMap(1, torch.tensor([1, 0])), AxisMap(1, None, vector([2.0, 5.0]))))
    value = vector([1.0, 2.0, 3.0, 4.0]).reshape(2, 2)
    assert blocks.apply(value).tolist() == [[2.0, 1.0], [6.0, 20.0]]
    assert blocks.apply_inverse_transpose(value).tolist() == [[2.0, 1.0], [1.5, 0.8]]
    assert blocks.reorder(value).tolist() == [[2.0, 1.0], [3.0, 4.0]]
    torch.testing.assert_close(blocks.inverse().apply(blocks.apply(value)), value)


# ------------------------------------------------------------------------------------------------ heads


def dense(head_map: HeadMap, length: int) -> Tensor:
    """The same map as one matrix, entry by entry."""
    matrix = torch.eye(length, dtype=torch.float64)
    heads, width, _ = head_map.matrices.shape
    for h in range(heads):
        for i in range(width):
            for j in range(width):
                at = head_map.start + h * width
                matrix[at + i, at + j] = head_map.matrices[h, i, j]
    return matrix


@settings(max_examples=40)
@given(st.data())
def test_a_map_of_heads_is_a_block_diagonal_matrix_along_its_axis(data: st.DataObject) -> None:
    heads, width, start, rest = (data.draw(st.integers(low, 4)) for low in (1, 1, 0, 0))
    rank = data.draw(st.integers(1, 3))
    axis = data.draw(st.integers(0, rank - 1))
    length = start + heads * width + rest
    shape = [data.draw(st.integers(1, 3)) for _ in range(rank)]
    shape[axis] = length
    matrices = normal(heads, width, width) + 3 * torch.eye(width, dtype=torch.float64)
    head_map, value = HeadMap(axis, matrices, start), normal(*shape, seed=1)
    matrix = dense(head_map, length)

    def along(by: Tensor) -> Tensor:
        return torch.tensordot(by, value, dims=([1], [axis])).movedim(0, axis)

    torch.testing.assert_close(head_map.apply(value), along(matrix))
    torch.testing.assert_close(head_map.apply_inverse_transpose(value), along(torch.linalg.inv(matrix).T))
    torch.testing.assert_close(head_map.inverse().apply(head_map.apply(value)), value)
    assert head_map.reorder(value) is value


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_heads_have_the_precision_of_the_tensor_and_are_rounded_once(dtype: torch.dtype) -> None:
    value, matrices = normal(12, 5).to(dtype), normal(3, 4, 4, seed=1)
    found = HeadMap(0, matrices).apply(value)
    assert found.dtype == dtype
    assert torch.equal(found, (torch.block_diag(*matrices) @ value.double()).to(dtype))


def test_layer_inputs_follow_a_map_of_columns_and_not_one_of_rows() -> None:
    """W′ X′ = W X, where W's columns went through the heads' map, a slice of them, and factors."""
    weight, inputs = normal(3, 7, seed=1), normal(7, 5, seed=2)
    for maps in (
        (HeadMap(1, normal(2, 3, 3)),),
        (HeadMap(1, normal(2, 3, 3), 1),),
        (HeadMap(1, normal(2, 3, 3), 1), AxisMap(1, None, normal(7, seed=3).exp())),
    ):
        move = ChannelMove({"w": maps})
        torch.testing.assert_close(move.point("w", weight) @ move.inputs("w", inputs), weight @ inputs)
    rows = ChannelMove({"w": (HeadMap(0, normal(1, 3, 3)),)})
    assert rows.inputs("w", inputs) is inputs


# ------------------------------------------------------------------------------------------------ shifts, application


def test_a_translation_moves_points_alone() -> None:
    shift, value = normal(2, 3), normal(2, 3, seed=1)
    move = Translation({"w": shift})
    torch.testing.assert_close(move.point("w", value), value + shift)
    for how in (move.covector, move.selection, move.inputs):
        assert how("w", value) is value
    torch.testing.assert_close(move.inverse().point("w", move.point("w", value)), value)
    assert move.point("w", value.float()).dtype == torch.float32


def test_frozen_and_tied_parameters_and_buffers_are_moved_in_place_once() -> None:
    model = nn.BatchNorm1d(2)
    model.weight.requires_grad_(False)
    kept = model.weight, model.running_mean
    apply_move(model, Translation({"weight": torch.ones(2), "running_mean": torch.full((2,), 3.0)}))
    assert model.weight is kept[0]
    assert model.running_mean is kept[1]
    assert (model.weight.tolist(), model.running_mean.tolist()) == ([2.0, 2.0], [3.0, 3.0])
    assert not model.weight.requires_grad
    assert int(model.num_batches_tracked) == 0
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    before = tied[0].weight.detach().clone()
    apply_move(tied, Translation({"0.weight": torch.ones(3, 3)}))
    assert torch.equal(tied[1].weight, before + 1)


# ------------------------------------------------------------------------------------------------ moves in turn


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.inner(x))


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        stem = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()]
        return nn.Sequential(*stem, Residual(), nn.Flatten(), nn.Linear(16, 3)).double().eval()


def drawn(kind: str, net: nn.Module, generator: torch.Generator) -> Move:
    if kind == "shift":
        shapes = {n: p.shape for n, p in net.named_parameters() if p.dim() > 1}
        return Translation({n: torch.randn(s, generator=generator, dtype=torch.float64) for n, s in shapes.items()})
    kinds: dict[str, Any] = {"scale": ChangeOfBasis(), "order": Permutation()}
    symmetry = Compose(*kinds.values()) if kind == "both" else kinds[kind]
    return symmetry.move(net, generator=generator)


@settings(max_examples=40)
@given(
    kinds=st.lists(st.sampled_from(("scale", "order", "shift", "both")), min_size=1, max_size=6),
    seed=st.integers(0, 2**31),
)
def test_a_merged_move_is_the_moves_in_turn(kinds: list[str], seed: int) -> None:
    net = network()
    generator = torch.Generator().manual_seed(seed)
    drawn_moves = [drawn(kind, net, generator) for kind in kinds]
    merged: Move | None = None
    for move in drawn_moves:
        merged = compose(merged, move)
    assert merged is not None
    composed = ComposedMove(tuple(drawn_moves))
    for name, value in net.state_dict().items():
        if not value.is_floating_point():
            continue
        value = value + 1
        for how in ("point", "covector", "selection"):
            in_turn = value
            for move in drawn_moves:
                in_turn = getattr(move, how)(name, in_turn)
            for each in (merged, composed):
                torch.testing.assert_close(getattr(each, how)(name, value), in_turn)
        for each in (merged, composed):
            torch.testing.assert_close(each.inverse().point(name, each.point(name, value)), value)
        if value.dim() > 1:
            columns = value.flatten(1).mT.contiguous()
            torch.testing.assert_close(merged.inputs(name, columns), composed.inputs(name, columns))


@pytest.mark.parametrize("kind", ["scale", "order", "shift"])
def test_many_moves_of_a_kind_become_one_that_resets_no_momentum(kind: str) -> None:
    net, generator = network(), torch.Generator().manual_seed(0)
    merged: Move | None = None
    for _ in range(20):
        merged = compose(merged, MomentumReset(drawn(kind, net, generator)))
    assert isinstance(merged, Translation | ChannelMove)
    if isinstance(merged, ChannelMove):
        assert max(len(maps) for maps in merged.axes.values()) <= 2


def test_a_reset_follows_the_move_inside_and_its_inverse_resets_nothing() -> None:
    move = ChannelMove({"w": (AxisMap(0, torch.tensor([1, 0]), vector([2.0, 3.0])),)})
    reset, value = MomentumReset(move), normal(2, 3)
    for how in ("point", "covector", "selection", "inputs"):
        assert torch.equal(getattr(reset, how)("w", value), getattr(move, how)("w", value))
    assert not isinstance(reset.inverse(), MomentumReset)
    torch.testing.assert_close(reset.inverse().point("w", reset.point("w", value)), value)
