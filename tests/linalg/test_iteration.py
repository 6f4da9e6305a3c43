from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from warp_unlearning.linalg.iteration import (
    Span,
    Turned,
    _unproven_outside,
    iterate_inverse,
    leading_outside,
    turned_inverse,
)
from warp_unlearning.linalg.orthonormal import TOLERANCE, departure


def moment(count: int, d: int, seed: int, decay: float = 0.8) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    mix = torch.linalg.qr(torch.randn(d, d, generator=draw, dtype=torch.float64)).Q
    x = torch.randn(count, d, generator=draw, dtype=torch.float64) * decay ** torch.arange(d, dtype=torch.float64) @ mix
    return x.mT @ x


def random_basis(d: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(d, d, generator=draw, dtype=torch.float64)).Q


def distance(a: Tensor, b: Tensor) -> float:
    return float(torch.linalg.matrix_norm(a @ a.mT - b @ b.mT, ord=2))


def iterated(c: Tensor, start: Tensor, rounds: int) -> Tensor:
    span = Span(start)
    span.iterate(c, rounds=rounds)
    return span.basis


def test_it_converges_from_a_random_start() -> None:
    c = moment(400, 20, 3, decay=0.5)
    exact = torch.linalg.eigh(c).eigenvectors[:, -4:]
    distances = [distance(iterated(c, random_basis(20)[:, :4], r), exact) for r in (1, 2, 12)]
    assert distances[2] < 1e-6
    assert distances[2] < distances[1] < distances[0]


@settings(max_examples=30)
@given(seed=st.integers(0, 99), k=st.integers(1, 11), rounds=st.integers(1, 3))
def test_by_the_complement_it_is_the_same(seed: int, k: int, rounds: int) -> None:
    c, whole = moment(60, 12, seed), random_basis(12, seed)
    direct = iterated(c, whole[:, :k], rounds)
    normals = iterate_inverse(c, whole[:, k:], rounds=rounds)
    assert normals is not None
    assert departure(normals) <= 1e-9
    assert float((direct.mT @ normals).abs().max()) <= 1e-6


@settings(max_examples=30)
@given(seed=st.integers(0, 99), k=st.integers(1, 11))
def test_no_round_loses_energy(seed: int, k: int) -> None:
    c, start = moment(60, 12, seed), random_basis(12, seed)[:, :k]
    held = [float((b * (c @ b)).sum()) for b in (start, *(iterated(c, start, r) for r in (1, 2, 3)))]
    assert all(after >= before * (1 - 1e-12) for before, after in pairwise(held))


def test_directions_without_energy_stay_and_do_no_harm() -> None:
    c = torch.diag(torch.tensor([4.0, 1.0, 0.0, 0.0]))
    idle = torch.tensor([0.0, 0.0, 0.6, 0.8])
    basis = iterated(c, torch.stack([torch.eye(4)[0], idle, torch.eye(4)[1]], dim=1), 2)
    assert departure(basis) <= 1e-6
    assert float((basis * (c @ basis)).sum()) == pytest.approx(5.0)
    assert float((idle - basis @ (basis.mT @ idle)).norm()) <= 1e-6


def test_a_singular_moment_is_shifted_until_it_has_a_factor() -> None:
    c = moment(5, 12, 0).float()
    exact = torch.linalg.eigh(c.double()).eigenvectors[:, :7]
    normals = iterate_inverse(c, random_basis(12)[:, :7].float(), rounds=3)
    assert normals is not None
    assert departure(normals) <= 1e-4
    assert distance(normals.double(), exact) < 1e-2


def test_a_moment_that_rounding_has_made_indefinite_is_shifted_further() -> None:
    turn = random_basis(6).float()
    c = turn * torch.tensor([1.0, 0.5, 0.2, 0.1, 0.05, -2e-5]) @ turn.mT
    normals = iterate_inverse(c, random_basis(6, 1)[:, :1].float(), rounds=4)
    assert normals is not None
    assert float((normals.mT @ turn[:, 5:]).abs()) > 0.999


def test_a_moment_that_is_far_from_positive_has_no_complement_to_follow() -> None:
    c = torch.diag(torch.tensor([3.0, 1.0, -0.5]))
    assert iterate_inverse(c, torch.eye(3)[:, 2:], rounds=1) is None


def wide_problem() -> tuple[Tensor, Tensor, Tensor]:
    """A moment, and a basis of many columns beside its leading eigenvectors, with their eigenvalues."""
    c = moment(1500, 600, 0, decay=0.999)
    values, vectors = torch.linalg.eigh(c)
    basis = torch.linalg.qr(vectors.flip(1)[:, :520] + 0.5 * random_basis(600)[:, :520]).Q
    return c, basis, values.flip(0)[:520]


def test_of_many_columns_the_small_ones_take_turns() -> None:
    _, basis, sizes = wide_problem()
    span = Span(basis, sizes)
    small = sizes <= 4 * sizes[-1]
    assert 30 < int(small.sum()) < 490
    multiplied = []
    for _ in range(4):
        turn = span.next_turn()
        assert turn is not None
        assert torch.equal(turn[0], sizes.to(basis.dtype))
        chosen = turn[1]
        least = int((~small).sum()) + -(-int(small.sum()) // 4)
        assert least + 32 <= len(chosen) < least + 64
        assert len(chosen) % 32 == 0
        assert len(set(chosen.tolist())) == len(chosen)
        assert set((~small).nonzero().flatten().tolist()) <= set(chosen.tolist())
        multiplied.append({i for i in chosen.tolist() if small[i]})
    assert set.union(*multiplied) == set(small.nonzero().flatten().tolist())
    assert len({len(some) for some in multiplied}) == 1


def test_as_many_columns_are_multiplied_until_it_takes_more_or_far_fewer() -> None:
    _, basis, _ = wide_problem()
    k = basis.shape[1]

    def sized(large: int) -> Tensor:
        return torch.where(torch.arange(k) < large, 10.0, 1.0) / (10 * k)

    span, counts = Span(basis, sized(200)), []
    for large in (200, 220, 180, 240, 330, 300, 30, 40):
        span.accept(Turned(basis, ()), sized(large))
        turn = span.next_turn()
        assert turn is not None
        assert len(set(turn[1].tolist())) == len(turn[1]) >= large + (k - large) / 4
        counts.append(len(turn[1]))
    assert counts[0] == counts[1] == counts[2] == counts[3] < counts[4] == counts[5] > counts[6] == counts[7]


def test_taking_turns_loses_little_and_columns_stay_orthonormal() -> None:
    c, basis, sizes = wide_problem()
    best = float(torch.linalg.eigvalsh(c)[:80].sum())

    def missed(b: Tensor) -> float:
        return float(c.diagonal().sum() - (b * (c @ b)).sum())

    span = Span(basis.float(), sizes)
    for _ in range(4):
        span.iterate(c.float(), rounds=1)
        assert departure(span.basis) <= 1e-3
    assert missed(basis) > 1.2 * best
    assert missed(span.basis.double()) - best < 0.3 * (missed(basis) - best)


@pytest.mark.parametrize("count", [0, 3, 30])
def test_leading_directions_outside_of_a_subspace(count: int) -> None:
    draw = torch.Generator().manual_seed(3)
    turn = torch.linalg.qr(torch.randn(20, 20, generator=draw, dtype=torch.float64)).Q
    values = torch.cat([torch.tensor([9.0, 8.0, 7.0, 6.0, 5.0, 2.0, 1.5, 1.0]), torch.full((12,), 1e-3)]).double()
    moment = turn * values @ turn.mT
    basis = turn[:, :5]
    found, energies = leading_outside(moment, basis, count)
    expected = min(count, 15)
    assert found.shape == (20, expected)
    assert energies.shape == (expected,)
    torch.testing.assert_close(found.mT @ found, torch.eye(expected).double(), rtol=0, atol=1e-9)
    if count:
        assert float((basis.mT @ found).abs().max()) <= 1e-12
        torch.testing.assert_close(energies[:3], values[5:8], rtol=1e-4, atol=0)
        torch.testing.assert_close((found * (moment @ found)).sum(0), energies, rtol=1e-9, atol=1e-12)


def test_directions_outside_are_orthogonal_to_a_subspace_that_holds_nearly_all() -> None:
    draw = torch.Generator().manual_seed(4)
    turn = torch.linalg.qr(torch.randn(60, 60, generator=draw, dtype=torch.float64)).Q
    values = torch.cat([torch.full((20,), 1e3), 10.0 * 0.3 ** torch.arange(40)]).double()
    moment, basis = (turn * values @ turn.mT).float(), turn[:, :20].float()
    found, _ = leading_outside(moment, basis, 8)
    assert float((basis.mT @ found).abs().max()) <= 1e-6
    assert float((found.mT @ found - torch.eye(8)).abs().max()) <= 1e-5


def test_directions_outside_that_one_step_cannot_make_orthonormal() -> None:
    draw = torch.Generator().manual_seed(5)
    turn = torch.linalg.qr(torch.randn(40, 40, generator=draw, dtype=torch.float64)).Q
    moment = (turn * 0.02 ** torch.arange(40).double().clamp(max=9) @ turn.mT).float()
    basis = turn[:, :1].float()
    assert not _unproven_outside(moment, basis, 8)[2] <= TOLERANCE
    found, energies = leading_outside(moment, basis, 8)
    assert departure(found) <= TOLERANCE
    torch.testing.assert_close(energies[:2], 0.02 ** torch.tensor([1.0, 2.0]).double(), rtol=1e-2, atol=0)


def test_an_inverse_that_has_no_factor_is_in_doubt() -> None:
    """What the factor leaves behind may have orthonormal columns all the same."""
    moment = torch.diag(torch.tensor([4.0, 3.0, -2.0, 1.0], dtype=torch.float64))
    turned = turned_inverse(moment, torch.eye(4, dtype=torch.float64)[:, :1], rounds=1)
    assert float(turned.doubt) == float("inf")
    sound = turned_inverse(moment.abs(), torch.eye(4, dtype=torch.float64)[:, :1], rounds=1)
    assert float(sound.doubt) <= 1e-12
