from __future__ import annotations

from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from warp_unlearning.linalg.orthonormal import (
    TOLERANCE,
    Doubt,
    Unproven,
    by_one_step,
    departure,
    fixed_normal,
    orthonormal,
    step_after_leading,
)


def matrix(rows: int, columns: int, condition: float, seed: int, dtype: torch.dtype) -> torch.Tensor:
    """A random matrix with singular values spread geometrically from 1 to 1/condition."""
    draw = torch.Generator().manual_seed(seed)
    left = torch.linalg.qr(torch.randn(rows, columns, generator=draw, dtype=torch.float64)).Q
    right = torch.linalg.qr(torch.randn(columns, columns, generator=draw, dtype=torch.float64)).Q
    values = torch.logspace(0, -torch.log10(torch.tensor(condition)).item(), columns, dtype=torch.float64)
    return (left * values @ right.mT).to(dtype)


def spectral(q: torch.Tensor) -> float:
    """‖QᵀQ − I‖ in float64."""
    gram = q.double().mT @ q.double()
    return float(torch.linalg.matrix_norm(gram - torch.eye(len(gram), dtype=torch.float64), ord=2))


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
    assert spectral(q) <= 1e-3


@given(condition=st.floats(1, 1e4), seed=st.integers(0, 1000))
def test_the_span_is_that_of_the_columns(condition: float, seed: int) -> None:
    x = matrix(30, 8, condition, seed, torch.float64)
    q = orthonormal(x)
    assert (x - q @ (q.mT @ x)).norm() <= 1e-9 * x.norm()


@pytest.mark.parametrize("condition", [1e2, 1e3, 3e3, 1e5, 1e8])
def test_many_columns_in_float32_stay_orthonormal(condition: float) -> None:
    assert spectral(orthonormal(matrix(700, 300, condition, 0, torch.float32))) <= 1e-3


@pytest.mark.parametrize("condition", [1e4, 1e6, 1e8])
def test_ill_conditioned_columns_do_without_qr(condition: float, monkeypatch: pytest.MonkeyPatch) -> None:
    x = matrix(700, 300, condition, 0, torch.float32) * torch.logspace(-6, 6, 300)
    monkeypatch.delattr(torch.linalg, "qr")
    q = orthonormal(x).double()
    assert spectral(q) <= TOLERANCE
    even = x.double() / x.double().norm(dim=0)
    assert float((even - q @ (q.mT @ even)).norm(dim=0).max()) <= 1e-5


def test_one_plain_cholesky_step_breaks_down_where_this_does_not() -> None:
    x = matrix(200, 40, 1e5, 0, torch.float32)
    factor, failed = torch.linalg.cholesky_ex(x.mT @ x)
    plain = torch.linalg.solve_triangular(factor, x.mT, upper=False).mT
    assert bool(failed) or departure(plain) > 1e-2
    assert spectral(orthonormal(x)) <= TOLERANCE


def test_columns_of_very_different_length_are_no_harder_than_equal_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    x = matrix(50, 20, 3.0, 0, torch.float32) * torch.logspace(-12, 12, 20)
    monkeypatch.delattr(torch.linalg, "qr")
    assert spectral(orthonormal(x)) <= 1e-5


@pytest.mark.parametrize("columns", [torch.zeros(5, 2), torch.ones(5, 2), torch.empty(5, 0)])
def test_columns_without_full_rank_still_give_an_orthonormal_matrix(columns: torch.Tensor) -> None:
    q = orthonormal(columns)
    assert q.shape == columns.shape
    assert departure(q) <= 1e-4


def test_departure_is_the_norm_of_the_difference_to_the_identity() -> None:
    q = torch.tensor([[1.0, 0.5], [0.0, 2.0]])
    assert departure(q) == pytest.approx(spectral(q), rel=1e-3)
    assert departure(torch.eye(3)) == 0.0
    assert not departure(torch.full((3, 2), float("nan"))) <= 1.0


@given(seed=st.integers(0, 1000), k=st.integers(1, 200), size=st.floats(-8, 0))
def test_departure_finds_a_single_direction_that_is_not_orthonormal(seed: int, k: int, size: float) -> None:
    q = torch.linalg.qr(matrix(220, k, 2.0, seed, torch.float64)).Q
    direction = torch.randn(k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    direction = direction / direction.norm()
    q = q + torch.outer(q @ direction, direction) * ((1 + 10**size) ** 0.5 - 1)
    assert 0.1 * 10**size <= departure(q) <= 1.001 * 10**size


def test_one_step_says_how_far_it_is_from_orthonormal() -> None:
    q, doubt = by_one_step(matrix(40, 8, 10.0, 0, torch.float64))
    assert spectral(q) <= 1e-12
    assert float(doubt) <= 1e-12
    q, doubt = by_one_step(matrix(200, 40, 2e3, 0, torch.float32))
    assert float(doubt) == pytest.approx(spectral(q), rel=0.3)
    assert float(doubt) > TOLERANCE
    _, doubt = by_one_step(torch.ones(5, 2))
    assert not float(doubt) <= TOLERANCE
    _, doubt = by_one_step(torch.zeros(5, 2))
    assert float(doubt) == float("inf")


def test_fixed_numbers_are_normal_and_the_same_at_every_call() -> None:
    first = fixed_normal(500, 8, torch.float64, torch.device("cpu"))
    assert torch.equal(first, fixed_normal(500, 8, torch.float64, torch.device("cpu")))
    assert abs(float(first.mean())) < 0.1
    assert float(first.std()) == pytest.approx(1, rel=0.1)


def test_a_departure_is_infinite_where_either_factor_failed() -> None:
    fine, failed = torch.tensor(0, dtype=torch.int32), torch.tensor(3, dtype=torch.int32)
    first, second = torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.5])
    given = [(fine,), (failed,), (fine, fine), (fine, failed), (failed, fine)]
    found = Doubt.measured([Doubt(factors, first, second) for factors in given])
    assert found.tolist() == [0.5, inf, 0.5, inf, inf]


def multiplied(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """What a product with a second moment makes of columns that have turned a little: all lean to the first ones."""
    draw = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(300, 120, generator=draw, dtype=torch.float64)).Q
    # A few are much larger than the others, as those of layers' inputs are.
    values = torch.cat([torch.logspace(0, -3, 30), torch.logspace(-3, -4, 90)]).double()
    turned = basis + 0.001 * basis @ torch.randn(120, 120, generator=draw, dtype=torch.float64)
    return (basis @ (values.unsqueeze(1) * (basis.mT @ turned))).to(dtype)


@pytest.mark.parametrize("leading", [1, 30, 119])
def test_after_the_leading_columns_the_span_is_that_of_all(leading: int) -> None:
    columns = multiplied(torch.float64)
    q, doubt = step_after_leading(columns, leading)
    assert float(Doubt.measured([doubt])[0]) <= 1e-8
    expected = torch.linalg.qr(columns).Q
    torch.testing.assert_close(q @ q.mT, expected @ expected.mT, rtol=0, atol=1e-7)
    first = torch.linalg.qr(columns[:, :leading]).Q
    torch.testing.assert_close(q[:, :leading] @ q[:, :leading].mT, first @ first.mT, rtol=0, atol=1e-7)


def test_one_step_is_enough_once_the_leading_part_is_gone() -> None:
    columns = multiplied()
    assert not float(by_one_step(columns)[1]) <= TOLERANCE
    q, doubt = step_after_leading(columns, 30)
    assert float(Doubt.measured([doubt])[0]) <= TOLERANCE
    assert spectral(q) <= TOLERANCE


@pytest.mark.parametrize("place", [0, 40])
def test_columns_without_full_rank_are_in_doubt(place: int) -> None:
    columns = multiplied()
    columns[:, place + 1] = columns[:, place]
    unproven = Unproven(30)
    unproven(columns)
    assert not float(Doubt.measured(unproven.doubts)[0]) <= TOLERANCE
