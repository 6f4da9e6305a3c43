"""Against dense linear algebra in float64: the singular vectors of all inputs at once, explicit matrices."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracles.symmetry import normal
from torch import Tensor

from warp_unlearning.errors import InputError
from warp_unlearning.linalg.subspace import Rule, SecondMoment, gram, orthonormal, project_out, rank_for


def with_spectrum(values: Tensor, d: int, n: int, seed: int = 0) -> Tensor:
    """X (d, n) whose singular values are given."""
    left = torch.linalg.qr(normal(d, len(values), seed=seed)).Q
    return left * values @ torch.linalg.qr(normal(n, len(values), seed=seed + 1)).Q.T


def moment_of(*batches: Tensor, dtype: torch.dtype = torch.float64, exact: bool = False) -> SecondMoment:
    moment = SecondMoment(dtype, exact=exact)
    for x in batches:
        moment.add(x)
    return moment


def gap(a: Tensor, b: Tensor) -> float:
    """The largest sine of a principal angle between spans of orthonormal columns (d, k)."""
    assert a.shape == b.shape
    return float(torch.linalg.matrix_norm(a - b @ (b.T @ a), 2)) if a.shape[1] else 0.0


def eye_gap(basis: Tensor) -> float:
    return float(torch.linalg.matrix_norm(basis.mT @ basis - torch.eye(basis.shape[-1], dtype=basis.dtype)))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("rule", ["energy", "singular_values"])
@pytest.mark.parametrize(("d", "n"), [(30, 200), (30, 30), (60, 20)])
def test_the_leading_subspace_is_that_of_the_singular_vectors(d: int, n: int, rule: Rule, exact: bool) -> None:
    spectrum = 0.8 ** torch.arange(min(d, n), dtype=torch.float64)
    x = torch.stack([with_spectrum(spectrum, d, n), with_spectrum(spectrum**2, d, n, seed=5)])
    found = moment_of(x, exact=exact).leading(0.97, rule=rule)
    for group, basis, energies, rank in zip(x, found.basis, found.energies, found.ranks, strict=True):
        left, values, _ = torch.linalg.svd(group, full_matrices=False)
        weights = values**2 if rule == "energy" else values
        expected = next(k for k in range(1, d + 1) if weights[:k].sum() >= 0.97 * weights.sum())
        assert rank == expected
        assert gap(basis[:, :rank], left[:, :rank]) < 1e-9
        assert eye_gap(basis[:, :rank]) < 1e-12
        assert bool((basis[:, rank:] == 0).all())
        torch.testing.assert_close(energies[:rank], values[:rank] ** 2)
    shares = [float((g.T @ b).square().sum() / g.square().sum()) for g, b in zip(x, found.basis, strict=True)]
    assert found.captured == pytest.approx(min(shares), abs=1e-12)


def test_the_count_of_directions_is_clamped_to_what_there_is() -> None:
    x = with_spectrum(torch.tensor([5.0, 3.0, 2.0, 1.0], dtype=torch.float64), 9, 30)[None]
    moment, few = moment_of(x), moment_of(x[..., :3])
    assert moment.leading(0.5, k=3).ranks == (3,)
    assert moment.leading(0.5, k=20).ranks == (4,)
    assert moment.leading(1.0, k_max=2).ranks == (2,)
    assert moment.leading(0.5, k=4, k_max=3).ranks == (3,)
    assert few.leading(0.5, k=4).ranks == (3,)
    assert gap(moment.leading(0.5, k=20).basis[0], torch.linalg.svd(x[0]).U[:, :4]) < 1e-9


@settings(max_examples=40)
@given(st.integers(1, 24), st.integers(1, 60), st.integers(0, 100), st.floats(0, 14), st.booleans())
def test_bases_are_orthonormal_on_any_spectrum(d: int, n: int, seed: int, decades: float, keep: bool) -> None:
    """Singular values down to 1e-14 of the first; dead coordinates, and groups of another rank."""
    size = min(d, n)
    spectrum = 10 ** torch.linspace(0, -decades, size, dtype=torch.float64)
    x = torch.stack([with_spectrum(spectrum, d, n, seed), with_spectrum(spectrum[: size // 2], d, n, seed + 2)])
    x[:, :: 3 + seed % 4] = 0
    moment = moment_of(x, exact=keep)
    found = moment.leading(1.0)
    for group, basis, rank in zip(x, found.basis, found.ranks, strict=True):
        assert eye_gap(basis[:, :rank]) < 1e-12
        assert bool((basis[group.abs().sum(1) == 0] == 0).all())
        scale = float(torch.linalg.matrix_norm(group, 2)) if group.any() else 1.0
        missed = float(torch.linalg.matrix_norm(group - basis @ (basis.T @ group), 2)) / scale
        assert missed < (1e-12 if keep else 1e-6)
    begun = normal(2, d, max(1, size // 2), seed=seed)
    expected = x @ (x.mT @ begun)
    torch.testing.assert_close(moment.times(begun), expected, rtol=1e-9, atol=1e-12 * float(expected.abs().max()))


def test_keeping_inputs_sees_singular_values_that_a_second_moment_loses() -> None:
    spectrum = torch.tensor([1.0, 1e-3, 1e-10], dtype=torch.float64)
    x = with_spectrum(spectrum, 6, 40)[None]
    assert moment_of(x, exact=True).leading(1.0).ranks == (3,)
    assert moment_of(x).leading(1.0).ranks == (2,)
    assert gap(moment_of(x, exact=True).leading(1.0).basis[0], torch.linalg.svd(x[0]).U[:, :3]) < 1e-5


def test_many_inputs_in_single_precision_do_not_hide_their_weak_directions() -> None:
    """Rounding errors of inputs grow with the root of their number, like the inputs themselves."""
    x = with_spectrum(torch.tensor([1.0, 1e-2, 1e-3], dtype=torch.float64), 8, 40_000)[None].float()
    found = moment_of(*x.split(10_000, 2), exact=True).leading(1.0)
    assert found.ranks == (3,)


@settings(max_examples=30)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.booleans(), st.integers(0, 100))
def test_batches_in_any_split_give_the_same(sizes: list[int], exact: bool, seed: int) -> None:
    """Also where a coordinate is first reached by a later batch."""
    x = normal(2, 12, sum(sizes), seed=seed) * 0.7 ** torch.arange(12.0)[:, None].double()
    x[:, 5:9, : sizes[0]] = 0
    x[0, 3] = 0
    whole, parts = moment_of(x, exact=exact), moment_of(*x.split(sizes, 2), exact=exact)
    along = normal(2, 12, 3, seed=1)
    running = SecondMoment(torch.float64, along=along)
    for part in x.split(sizes, 2):
        running.add(part)
    torch.testing.assert_close(running.times(along), x @ (x.mT @ along))
    torch.testing.assert_close(parts.times(along), x @ (x.mT @ along))
    for moment in (whole, parts, running):
        assert moment.positions == sum(sizes)
        torch.testing.assert_close(moment.energy, x.square().sum(2))
    one, other = whole.leading(0.95), parts.leading(0.95)
    assert one.ranks == other.ranks
    assert all(gap(a, b) < 1e-7 for a, b in zip(one.basis, other.basis, strict=True))


def test_inputs_may_be_written_over_once_they_are_taken_in() -> None:
    x = normal(1, 9, 4)
    moment, expected = moment_of(x), x @ x.mT
    x.zero_()
    torch.testing.assert_close(moment.times(torch.eye(9, dtype=x.dtype)[None]), expected)


def test_inputs_that_are_zero_have_no_directions() -> None:
    for n in (3, 50):
        for exact in (False, True):
            found = moment_of(torch.zeros(2, 7, n), exact=exact).leading(0.9)
            assert found.basis.shape == (2, 7, 0)
            assert (found.ranks, found.captured) == ((0, 0), 1.0)


@pytest.mark.parametrize("n", [32, 256, 2048])
@pytest.mark.parametrize("exact", [False, True])
def test_thousands_of_dead_coordinates_do_not_matter(n: int, exact: bool) -> None:
    """4,608 inputs of a convolution on maps of one pixel, 512 of them alive."""
    alive = torch.arange(4608).reshape(512, 9)[:, 4]
    small = normal(512, n) * 0.99 ** torch.arange(512.0)[:, None]
    x = torch.zeros(1, 4608, n)
    x[0, alive] = small.float()
    began = time.process_time()
    found = moment_of(*x.split(512, 2), dtype=torch.float64 if exact else torch.float32, exact=exact).leading(0.99)
    assert time.process_time() - began < 5
    expected = moment_of(small[None]).leading(0.99)
    assert abs(found.ranks[0] - expected.ranks[0]) <= 1
    outside = torch.ones(4608, dtype=torch.bool)
    outside[alive] = False
    assert bool((found.basis[0, outside] == 0).all())
    basis = found.basis[0, alive].double()
    assert eye_gap(basis) < 1e-4
    held = float((small.T @ basis).square().sum() / small.square().sum())
    assert held == pytest.approx(found.captured, abs=1e-5)
    assert held == pytest.approx(expected.captured, abs=1e-4)


def test_a_layer_of_25088_inputs_needs_no_matrix_of_that_size() -> None:
    x = torch.randn(1, 25_088, 256, generator=torch.Generator().manual_seed(0)).relu()
    began = time.process_time()
    moment = moment_of(*x.split(128, 2), dtype=torch.float32)
    found = moment.leading(0.99)
    tracked = orthonormal(moment.times(found.basis))
    assert time.process_time() - began < 10
    assert eye_gap(found.basis) < 1e-4
    assert float((x[0].T @ tracked[0]).square().sum() / x.square().sum()) >= 0.99 - 1e-5


@settings(max_examples=40)
@given(st.integers(1, 20), st.integers(0, 20), st.floats(0, 14), st.integers(0, 50))
def test_an_orthonormal_basis_spans_its_columns(d: int, k: int, decades: float, seed: int) -> None:
    k = min(d, k)
    columns = with_spectrum(10 ** torch.linspace(0, -decades, k, dtype=torch.float64), d, max(k, 1), seed)[:, :k][None]
    basis = orthonormal(columns)
    assert eye_gap(basis[0]) < 1e-12
    left = columns - project_out(columns.mT, basis).mT
    torch.testing.assert_close(left, columns, rtol=0, atol=1e-12)


def test_zero_columns_stay_zero_and_dependent_ones_do_no_harm() -> None:
    columns = normal(2, 8, 4)
    columns[1, :, 2:] = 0
    found = orthonormal(columns)
    assert bool((found[1, :, 2:] == 0).all())
    assert max(eye_gap(found[0]), eye_gap(found[1, :, :2])) < 1e-14
    columns[0, :, 3] = columns[0, :, 0]
    found = orthonormal(columns)
    assert max(eye_gap(found[0]), eye_gap(found[1, :, :2])) < 1e-12
    assert bool((found[1, :, 2:] == 0).all())
    torch.testing.assert_close(found @ (found.mT @ columns), columns)


def test_a_zero_column_takes_no_direction_from_those_behind_it() -> None:
    columns = normal(1, 4, 4)
    columns[0, :, 1], columns[0, :, 2] = 0, columns[0, :, 0]
    found = orthonormal(columns)
    assert not found[0, :, 1].any()
    assert eye_gap(found[0, :, [0, 2, 3]]) < 1e-12
    torch.testing.assert_close(found @ (found.mT @ columns), columns)


@pytest.mark.parametrize("d", [3, 191, 384, 700])
def test_a_gram_matrix_in_blocks(d: int) -> None:
    x = normal(2, d, 17)
    torch.testing.assert_close(gram(x), x @ x.mT, rtol=1e-12, atol=1e-12)


def test_projecting_out_is_the_product_with_the_dense_projector() -> None:
    basis, rows = torch.linalg.qr(normal(2, 9, 4)).Q, normal(2, 5, 9, seed=1)
    torch.testing.assert_close(project_out(rows, basis), rows @ (torch.eye(9, dtype=rows.dtype) - basis @ basis.mT))


def test_ranks() -> None:
    values = torch.tensor([[8.0, 1.0, 1.0, 0.0], [4.0, 4.0, 1.0, 1.0]])
    assert rank_for(values, 0.8).tolist() == [1, 2]
    assert rank_for(values, 0.81).tolist() == [2, 3]
    assert rank_for(values, 1.0).tolist() == [3, 4]
    assert rank_for(values, 0.5, rule="singular_values").tolist() == [1, 2]
    assert rank_for(values, 1.0, floor=0.2).tolist() == [1, 4]
    assert rank_for(torch.zeros(5), 0.9).tolist() == 0
    long = 1 / torch.arange(1, 4609, dtype=torch.float64)
    assert rank_for(long.float(), 0.99) == rank_for(long, 0.99) == int((long.cumsum(0) < 0.99 * long.sum()).sum()) + 1
    for wrong in (0.0, 1.5, -0.1, float("nan")):
        with pytest.raises(InputError, match="must be above 0 and at most 1"):
            rank_for(values, wrong)
