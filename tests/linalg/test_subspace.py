from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from warp_unlearning.errors import InputError
from warp_unlearning.linalg.subspace import (
    Rule,
    Subspace,
    principal_subspace,
    project_out,
    rank_for,
    row_space,
)

rules = st.sampled_from(["energy", "singular_values"])


@settings(deadline=None)
@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12), st.floats(0.01, 0.999), rules)
def test_rank_is_the_first_that_holds_the_fraction(values: list[float], fraction: float, rule: Rule) -> None:
    values = sorted(values, reverse=True)
    weights = values if rule == "energy" else [v**0.5 for v in values]
    shares = [sum(weights[: k + 1]) / sum(weights) for k in range(len(weights))]
    assume(all(abs(share - fraction) > 1e-9 for share in shares))
    expected = next(k + 1 for k, share in enumerate(shares) if share > fraction)
    assert rank_for(torch.tensor(values, dtype=torch.float64), fraction, rule=rule) == expected


def test_a_fraction_met_exactly_needs_no_further_direction() -> None:
    values = torch.tensor([16.0, 4.0, 4.0, 1.0])
    assert [rank_for(values, f) for f in (0.5, 0.64, 0.8, 0.81, 0.96, 0.97)] == [1, 1, 2, 3, 3, 4]
    # Their roots 4, 2, 2, 1 sum to 9.
    assert [rank_for(values, f, rule="singular_values") for f in (0.4, 0.5, 0.7, 0.9)] == [1, 2, 3, 4]


@pytest.mark.parametrize("rule", ["energy", "singular_values"])
def test_a_fraction_of_one_is_the_numerical_rank(rule: Rule) -> None:
    values = torch.tensor([1.0, 1e-3, 1e-17, 0.0, -1e-18], dtype=torch.float64)
    assert rank_for(values, 1.0, rule=rule) == 2
    assert rank_for(values, 1 - 1e-12, rule=rule) == 2
    assert rank_for(torch.tensor([1.0, 1e-3, 1e-8]), 1.0, rule=rule) == 2


@pytest.mark.parametrize("values", [[], [0.0, 0.0], [-1e-12]])
def test_nothing_has_rank_zero(values: list[float]) -> None:
    assert rank_for(torch.tensor(values, dtype=torch.float64), 0.9) == 0


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.1, float("nan")])
def test_fractions_outside_are_refused(fraction: float) -> None:
    with pytest.raises(InputError, match="fraction of energy"):
        rank_for(torch.ones(3), fraction)


def data(seed: int, rows: int, dim: int, rank: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    spectrum = 2.0 ** -np.arange(rank)
    return rng.normal(size=(rows, rank)) * spectrum @ rng.normal(size=(rank, dim))


@pytest.mark.parametrize("rule", ["energy", "singular_values"])
@pytest.mark.parametrize("fraction", [0.3, 0.9, 0.99, 1.0])
@pytest.mark.parametrize(("rows", "dim", "rank"), [(40, 9, 9), (5, 12, 5), (30, 10, 4)])
def test_the_span_is_that_of_the_leading_singular_vectors(
    rows: int, dim: int, rank: int, fraction: float, rule: Rule
) -> None:
    x = data(1, rows, dim, rank)
    singular, right = np.linalg.svd(x)[1:]
    singular = singular[:rank]
    weights = singular**2 if rule == "energy" else singular
    k = rank if fraction == 1 else int(np.searchsorted(np.cumsum(weights) / weights.sum(), fraction)) + 1
    found = principal_subspace(torch.from_numpy(x.T @ x), fraction, rule=rule)
    assert found.rank == k
    np.testing.assert_allclose((found.basis @ found.basis.T).numpy(), right[:k].T @ right[:k], atol=1e-6)
    np.testing.assert_allclose((found.basis.T @ found.basis).numpy(), np.eye(k), atol=1e-12)
    assert found.captured == pytest.approx((singular[:k] ** 2).sum() / (singular**2).sum(), rel=1e-9)


def test_coordinates_without_data_get_zeros() -> None:
    x = data(2, 20, 6, 3)
    wide = np.zeros((20, 9))
    alive = [0, 2, 3, 5, 7, 8]
    wide[:, alive] = x
    found = principal_subspace(torch.from_numpy(wide.T @ wide), 1.0)
    assert found.rank == 3
    assert found.basis[[1, 4, 6]].abs().max() == 0
    within = principal_subspace(torch.from_numpy(x.T @ x), 1.0)
    torch.testing.assert_close(found.basis[alive] @ found.basis[alive].T, within.basis @ within.basis.T)


def test_no_data_at_all_has_an_empty_basis() -> None:
    found = principal_subspace(torch.zeros(4, 4), 0.9)
    assert found.basis.shape == (4, 0)
    assert found.captured == 0.0
    rows = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(project_out(rows, found.basis), rows)


def test_the_basis_has_the_type_of_the_input() -> None:
    x = torch.from_numpy(data(3, 20, 5, 5)).float()
    assert principal_subspace(x.T @ x, 0.9).basis.dtype == torch.float32


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 8), st.data())
def test_project_out_is_the_complement_projector(seed: int, dim: int, draw: st.DataObject) -> None:
    k = draw.draw(st.integers(1, dim))
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(dim, k)))[0]
    rows = rng.normal(size=(2, 3, dim))
    expected = rows @ (np.eye(dim) - basis @ basis.T)
    found = project_out(torch.from_numpy(rows), torch.from_numpy(basis))
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


def test_a_decomposition_in_float32_has_the_same_span() -> None:
    x = torch.from_numpy(data(4, 60, 20, 20))
    coarse = principal_subspace(x.T @ x, 0.99, dtype=torch.float32)
    exact = principal_subspace(x.T @ x, 0.99)
    assert coarse.rank == exact.rank
    torch.testing.assert_close(coarse.basis @ coarse.basis.T, exact.basis @ exact.basis.T, atol=1e-3, rtol=0)


@pytest.mark.parametrize(("rows", "dim"), [(6, 12), (40, 12)])
def test_a_row_space_keeps_directions_that_a_second_moment_cannot_hold(rows: int, dim: int) -> None:
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.normal(size=(n, 4)))[0] for n in (rows, dim))
    x = torch.from_numpy(left * [1.0, 1e-3, 1e-9, 1e-11] @ right.T)
    found = row_space(x)
    assert found.rank == 4
    np.testing.assert_allclose((found.basis @ found.basis.T).numpy(), right @ right.T, atol=1e-4)
    assert principal_subspace(x.T @ x, 1.0).rank < 4
    assert [row_space(x, noise=n).rank for n in (1e-2, 1e-6, 1e-10)] == [1, 2, 3]


def test_a_row_space_leaves_out_coordinates_without_data() -> None:
    x = torch.zeros(5, 6, dtype=torch.float64)
    x[:, [1, 4]] = torch.from_numpy(data(0, 5, 2, 2))
    assert row_space(x).basis[[0, 2, 3, 5]].abs().max() == 0
    assert row_space(x).captured == pytest.approx(1.0)
    nothing = row_space(torch.zeros(3, 4))
    assert nothing.basis.shape == (4, 0)
    assert nothing.captured == 0.0


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.integers(1, 8), st.data())
def test_without_its_last_coordinate_a_subspace_is_the_span_of_what_is_left(
    seed: int, dim: int, draw: st.DataObject
) -> None:
    k = draw.draw(st.integers(0, dim))
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(dim, k)))[0]
    found = Subspace(torch.from_numpy(basis), 0.5).without_last().basis.numpy()
    left = basis[:-1]
    np.testing.assert_allclose(found @ found.T, left @ np.linalg.pinv(left, rcond=1e-9), atol=1e-7)
    np.testing.assert_allclose(found.T @ found, np.eye(found.shape[1]), atol=1e-12)


def test_the_constant_alone_leaves_nothing_behind() -> None:
    assert Subspace(torch.eye(3)[:, 2:], 1.0).without_last().rank == 0
    assert Subspace(torch.eye(3)[:, :1], 1.0).without_last().rank == 1


def test_missed_energy_is_what_a_projection_leaves() -> None:
    rows = torch.from_numpy(data(5, 9, 6, 6))
    basis = torch.linalg.qr(torch.from_numpy(data(6, 6, 6, 6))).Q[:, :2]
    inside = sum(float((row @ column) ** 2) for row in rows for column in basis.T)
    total = sum(float(row @ row) for row in rows)
    assert Subspace(basis, 0.0).missed(rows) == pytest.approx(1 - inside / total)
    assert Subspace(basis, 0.0).missed(0 * rows) == 0.0
