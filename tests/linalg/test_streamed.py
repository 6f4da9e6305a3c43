from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from warp_unlearning.linalg.streamed import StreamedRows


def rows_of(groups: int, count: int, d: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    scale = 0.7 ** torch.arange(d, dtype=torch.float64)
    mix = torch.randn(groups, d, d, generator=draw, dtype=torch.float64)
    return torch.randn(groups, count, d, generator=draw, dtype=torch.float64) * scale @ mix


def streamed(rows: Tensor, piece: int, *, whole: bool = False, dtype: torch.dtype = torch.float64) -> StreamedRows:
    found = StreamedRows(rows.shape[0], rows.shape[2], whole=whole, dtype=dtype)
    for part in torch.split(rows, piece, dim=1):
        found.add(part)
    return found


@settings(max_examples=60)
@given(
    groups=st.integers(1, 3),
    count=st.integers(1, 40),
    d=st.integers(1, 9),
    piece=st.integers(1, 15),
    fraction=st.sampled_from([0.5, 0.9, 0.99, 1.0]),
    whole=st.booleans(),
)
def test_it_is_the_subspace_of_all_rows_together(
    groups: int, count: int, d: int, piece: int, fraction: float, whole: bool
) -> None:
    rows = rows_of(groups, count, d)
    stream = streamed(rows, piece, whole=whole)
    assert stream.positions == count
    np.testing.assert_allclose(stream.energy().numpy(), (rows**2).sum(1).numpy())
    np.testing.assert_allclose(stream.second_moment().numpy(), (rows.mT @ rows).numpy(), atol=1e-9)
    for found, block in zip(stream.subspaces(fraction), rows.numpy(), strict=True):
        _, values, right = np.linalg.svd(block, full_matrices=False)
        energy = values**2 / (values**2).sum()
        assert found.captured >= fraction - 1e-9
        assert fraction == 1 or found.rank == 1 or energy[: found.rank - 1].sum() < fraction
        if fraction == 1:
            assert found.rank == min(count, d)
        leading = right[: found.rank].T
        if found.rank == len(values) or values[found.rank] < 0.99 * values[found.rank - 1]:
            np.testing.assert_allclose((found.basis @ found.basis.T).numpy(), leading @ leading.T, atol=1e-6)


@pytest.mark.parametrize("count", [5, 300])
def test_the_whole_span_includes_directions_that_hold_almost_nothing(count: int) -> None:
    draw = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(20, 20, generator=draw, dtype=torch.float64)).Q
    sizes = torch.tensor([1.0, 1e-4, 1e-8, 1e-10], dtype=torch.float64)
    rows = (torch.randn(count, 4, generator=draw, dtype=torch.float64) * sizes @ turn[:4]).unsqueeze(0)
    (found,) = streamed(rows, 7, whole=True).subspaces(1.0)
    assert found.rank == 4
    free = torch.eye(20, dtype=torch.float64) - found.basis @ found.basis.mT
    assert (rows @ free).abs().max() <= 1e-13
    assert streamed(rows, 7).subspaces(1.0)[0].rank < 4


def test_rounding_errors_of_float32_are_not_taken_for_directions() -> None:
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(1, 100, 3, generator=draw) @ torch.randn(3, 12, generator=draw)
    assert streamed(rows, 9, whole=True).subspaces(1.0)[0].rank == 3
    assert streamed(rows.double(), 9, whole=True).subspaces(1.0)[0].rank == 12


def test_dead_coordinates_and_rows_that_are_not_finite_show_in_the_energy() -> None:
    rows = rows_of(1, 50, 6)
    rows[..., 2] = 0
    for piece in (3, 50):
        energy = streamed(rows, piece).energy()
        assert (energy == 0).tolist() == [[False, False, True, False, False, False]]
    for bad in (float("nan"), float("inf")):
        rows[0, 4, 1] = bad
        for piece in (3, 50):
            assert not streamed(rows, piece).energy().isfinite().all()


def test_sums_are_kept_in_the_type_asked_for() -> None:
    rows = rows_of(1, 300, 6)
    coarse = streamed(rows.float(), 10, dtype=torch.float32)
    assert coarse.second_moment().dtype == torch.float32
    fine = streamed(rows.float(), 10)
    assert fine.second_moment().dtype == torch.float64
    torch.testing.assert_close(fine.second_moment(), rows.float().double().mT @ rows.float().double())
    half = StreamedRows(1, 6)
    half.add(rows.to(torch.bfloat16))
    assert half.second_moment().dtype == torch.float64


@settings(max_examples=40)
@given(
    groups=st.integers(1, 3),
    count=st.integers(1, 30),
    d=st.integers(2, 8),
    piece=st.integers(1, 9),
    seed=st.integers(0, 9),
)
def test_some_coordinates_and_one_group_are_what_they_were(
    groups: int, count: int, d: int, piece: int, seed: int
) -> None:
    rows = rows_of(groups, count, d, seed)
    columns = torch.arange(d)[seed % 2 :: 2]
    stream = streamed(rows, piece)
    within, alone = stream.within(columns), stream.one(groups - 1)
    assert (within.positions, within.d, alone.groups) == (count, len(columns), 1)
    part = rows[:, :, columns]
    torch.testing.assert_close(within.second_moment(), part.mT @ part)
    torch.testing.assert_close(alone.second_moment(), rows[-1:].mT @ rows[-1:])
    assert (within.compressed() is None) == (count < len(columns))
    compressed = streamed(rows, piece).compressed()
    assert (compressed is None) == (count < d)
    if compressed is not None:
        torch.testing.assert_close(compressed, rows.mT @ rows)


@pytest.mark.parametrize("count", [3, 40])
@pytest.mark.parametrize("whole", [False, True])
def test_rows_in_more_coordinates_have_zeros_there(count: int, whole: bool) -> None:
    rows, columns = rows_of(2, count, 5), torch.tensor([1, 2, 4, 5, 7])
    wide = torch.zeros(2, count, 8, dtype=torch.float64).index_copy_(2, columns, rows)
    found = streamed(rows, 7, whole=whole).widened(columns, 8)
    assert found.positions == count
    torch.testing.assert_close(found.second_moment(), wide.mT @ wide)
    torch.testing.assert_close(found.energy(), wide.square().sum(1))
    more = rows_of(2, 30, 8, seed=1)
    found.add(more)
    both = torch.cat([wide, more], dim=1)
    torch.testing.assert_close(found.second_moment(), both.mT @ both)
    assert found.positions == count + 30


def test_rows_that_are_kept_do_not_change_with_what_was_given() -> None:
    rows, stream = rows_of(1, 3, 6), StreamedRows(1, 6)
    expected = rows.mT @ rows
    stream.add(rows)
    rows.zero_()
    torch.testing.assert_close(stream.second_moment(), expected)


@pytest.mark.parametrize("piece", [3, 50, 200])
def test_rounded_sums_are_kept_in_double_precision(piece: int) -> None:
    rows = rows_of(2, 200, 6).float()
    found = StreamedRows(2, 6, rounded=True)
    for part in torch.split(rows, piece, dim=1):
        found.add(part)
    moment = rows.double().mT @ rows.double()
    assert found.second_moment().dtype == torch.float64
    assert found.positions == 200
    np.testing.assert_allclose(found.second_moment(), moment, rtol=1e-5, atol=1e-5 * float(moment.max()))
    np.testing.assert_allclose(found.one(1).second_moment()[0], found.second_moment()[1])
    assert found.within(torch.tensor([0, 2])).rounded


def test_few_rounded_rows_are_kept_as_they_are() -> None:
    rows = rows_of(1, 4, 6).float()
    found = StreamedRows(1, 6, rounded=True)
    found.add(rows)
    exact = StreamedRows(1, 6)
    exact.add(rows)
    assert torch.equal(found.second_moment(), exact.second_moment())
    assert found.compressed() is None


def test_rows_that_were_kept_before_many_come_are_not_lost() -> None:
    rows = rows_of(1, 60, 6).float()
    found = StreamedRows(1, 6, rounded=True)
    found.add(rows[:, :4])
    found.add(rows[:, 4:])
    moment = rows.double().mT @ rows.double()
    np.testing.assert_allclose(found.second_moment(), moment, rtol=1e-5, atol=1e-5 * float(moment.max()))


def test_parts_and_wider_forms_round_as_the_whole_does() -> None:
    found = StreamedRows(1, 2, rounded=True)
    found.add(rows_of(1, 9, 2).float())
    assert found.widened(torch.tensor([0, 3]), 5).rounded
    assert found.one(0).rounded


def test_a_whole_span_is_never_rounded() -> None:
    rows = rows_of(1, 40, 6).float()
    found = StreamedRows(1, 6, whole=True, rounded=True)
    found.add(rows)
    exact = StreamedRows(1, 6, whole=True)
    exact.add(rows)
    assert torch.equal(found.second_moment(), exact.second_moment())
