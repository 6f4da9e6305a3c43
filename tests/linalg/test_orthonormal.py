from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from warp_unlearning.linalg.orthonormal import departure, orthonormal


def matrix(rows: int, columns: int, condition: float, seed: int, dtype: torch.dtype) -> torch.Tensor:
    """A random matrix with singular values spread geometrically from 1 to 1/condition."""
    draw = torch.Generator().manual_seed(seed)
    left = torch.linalg.qr(torch.randn(rows, columns, generator=draw, dtype=torch.float64)).Q
    right = torch.linalg.qr(torch.randn(columns, columns, generator=draw, dtype=torch.float64)).Q
    values = torch.logspace(0, -torch.log10(torch.tensor(condition)).item(), columns, dtype=torch.float64)
    return (left * values @ right.mT).to(dtype)


@given(
    rows=st.integers(1, 60),
    columns=st.integers(1, 60),
    condition=st.floats(1, 1e9),
    seed=st.integers(0, 1000),
    double=st.booleans(),
)
def test_columns_are_orthonormal_whatever_the_condition(
    rows: int, columns: int, condition: float, seed: int, double: bool
) -> None:
    dtype = torch.float64 if double else torch.float32
    q = orthonormal(matrix(max(rows, columns), min(rows, columns), condition, seed, dtype))
    identity = torch.eye(q.shape[1], dtype=torch.float64)
    assert (q.double().mT @ q.double() - identity).abs().max() <= 1e-3


@given(condition=st.floats(1, 1e4), seed=st.integers(0, 1000))
def test_the_span_is_that_of_the_columns(condition: float, seed: int) -> None:
    x = matrix(30, 8, condition, seed, torch.float64)
    q = orthonormal(x)
    assert (x - q @ (q.mT @ x)).norm() <= 1e-9 * x.norm()


def test_one_plain_cholesky_step_breaks_down_where_this_does_not() -> None:
    x = matrix(200, 40, 1e5, 0, torch.float32)
    factor, failed = torch.linalg.cholesky_ex(x.mT @ x)
    plain = torch.linalg.solve_triangular(factor, x.mT, upper=False).mT
    assert bool(failed) or departure(plain) > 1e-2
    assert departure(orthonormal(x)) <= 1e-4


@pytest.mark.parametrize("columns", [torch.zeros(5, 2), torch.ones(5, 2), torch.empty(5, 0)])
def test_columns_without_full_rank_still_give_an_orthonormal_matrix(columns: torch.Tensor) -> None:
    q = orthonormal(columns)
    assert q.shape == columns.shape
    assert departure(q) <= 1e-4


def test_departure_is_the_largest_entry_of_the_difference_to_the_identity() -> None:
    q = torch.tensor([[1.0, 0.5], [0.0, 2.0]])
    assert departure(q) == pytest.approx(3.25)
