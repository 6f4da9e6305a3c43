from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from warp_unlearning.symmetry.moves import AxisMap, ChannelMove, HeadMap


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


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
def test_the_map_is_a_block_diagonal_matrix_along_its_axis(data: st.DataObject) -> None:
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


def test_rows_and_columns_of_a_weight() -> None:
    weight, matrix = normal(6, 4, seed=1), normal(1, 2, 2)
    rows = HeadMap(0, matrix, 2).apply(weight)
    torch.testing.assert_close(rows[2:4], matrix[0] @ weight[2:4])
    assert torch.equal(rows[:2], weight[:2])
    assert torch.equal(rows[4:], weight[4:])
    columns = HeadMap(1, matrix, 1).apply(weight)
    torch.testing.assert_close(columns[:, 1:3], weight[:, 1:3] @ matrix[0].T)
    assert torch.equal(columns[:, [0, 3]], weight[:, [0, 3]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_result_has_the_precision_of_the_tensor_and_is_rounded_once(dtype: torch.dtype) -> None:
    value, matrices = normal(12, 5).to(dtype), normal(3, 4, 4, seed=1)
    found = HeadMap(0, matrices).apply(value)
    exact = torch.block_diag(*matrices) @ value.double()
    assert found.dtype == dtype
    assert torch.equal(found, exact.to(dtype))


def test_covectors_pair_with_points_as_before() -> None:
    head_map = HeadMap(1, normal(2, 3, 3) + 2 * torch.eye(3, dtype=torch.float64))
    step, gradient = normal(4, 6, seed=1), normal(4, 6, seed=2)
    after = (head_map.apply(step) * head_map.apply_inverse_transpose(gradient)).sum()
    torch.testing.assert_close(after, (step * gradient).sum())


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
