from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from warp_unlearning.errors import InputError
from warp_unlearning.linalg.orthonormal import departure
from warp_unlearning.linalg.subspace import principal_subspace, principal_subspace_of
from warp_unlearning.linalg.tracked import TrackedSubspace, captured_energy, iterate


def rows(count: int, width: int, seed: int, decay: float = 0.8) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    mix = torch.linalg.qr(torch.randn(width, width, generator=draw, dtype=torch.float64)).Q
    scale = decay ** torch.arange(width, dtype=torch.float64)
    return torch.randn(count, width, generator=draw, dtype=torch.float64) * scale @ mix


def second_moment(x: Tensor) -> Tensor:
    return x.mT @ x


@given(count=st.integers(1, 40), width=st.integers(1, 40), fraction=st.floats(0.3, 1.0), seed=st.integers(0, 99))
def test_primal_and_dual_forms_agree_with_the_singular_vectors(
    count: int, width: int, fraction: float, seed: int
) -> None:
    x = rows(count, width, seed)
    found = principal_subspace_of(x, fraction)
    _, values, right = torch.linalg.svd(x, full_matrices=False)
    energy = values.square()
    assert found.captured == pytest.approx(float(energy[: found.rank].sum() / energy.sum()), rel=1e-9)
    assert found.captured >= fraction - 1e-6
    # The span is unique only where the spectrum has a gap behind it.
    if found.rank < len(values) and values[found.rank] < 0.99 * values[found.rank - 1]:
        basis = right[: found.rank].mT
        assert torch.allclose(found.basis @ found.basis.mT, basis @ basis.mT, atol=1e-6)


def test_the_first_subspace_is_the_exact_one() -> None:
    moment = second_moment(rows(200, 30, 0))
    tracked = TrackedSubspace(0.9)
    exact = principal_subspace(moment, 0.9)
    assert torch.equal(tracked.refresh(moment).basis, exact.basis)
    assert tracked.decompositions == 1


@settings(max_examples=25)
@given(seed=st.integers(0, 99), drift=st.floats(0.001, 0.02))
def test_it_follows_a_slow_drift_without_decomposing_again(seed: int, drift: float) -> None:
    x = rows(300, 30, seed)
    turn = torch.randn(30, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    tracked = TrackedSubspace(0.95, rounds=3)
    start = tracked.refresh(second_moment(x))
    for i in range(1, 5):
        moment = second_moment(x @ torch.matrix_exp(i * drift * (turn - turn.mT)))
        followed = tracked.refresh(moment)
        best = torch.linalg.eigvalsh(moment).flip(0)
        missed, least = 1 - followed.captured, float(1 - best[: followed.rank].sum() / best.sum())
        assert missed <= 1.02 * least + 1e-9
        assert followed.captured >= captured_energy(moment, start.basis) - 1e-12
        assert departure(followed.basis) <= 1e-3
    assert tracked.decompositions == 1


def test_a_changed_spectrum_is_decomposed_again_and_the_rank_chosen_anew() -> None:
    tracked = TrackedSubspace(0.9)
    first = tracked.refresh(second_moment(rows(200, 30, 0, decay=0.3)))
    second = tracked.refresh(second_moment(rows(200, 30, 1, decay=0.97)))
    assert tracked.decompositions == 2
    assert second.rank > first.rank
    assert second.captured >= 0.9


def test_another_width_starts_anew() -> None:
    tracked = TrackedSubspace(0.9)
    tracked.refresh(second_moment(rows(50, 10, 0)))
    assert len(tracked.refresh(second_moment(rows(50, 12, 0))).basis) == 12
    assert tracked.decompositions == 2


def test_subspace_iteration_converges_from_a_random_start() -> None:
    moment = second_moment(rows(400, 20, 3, decay=0.5))
    start = torch.linalg.qr(torch.randn(20, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))).Q
    exact = torch.linalg.eigh(moment).eigenvectors[:, -4:]
    distances = [
        float(torch.linalg.matrix_norm(b @ b.mT - exact @ exact.mT, ord=2))
        for b in (iterate(moment, start, rounds=r) for r in (1, 2, 12))
    ]
    assert distances[2] < 1e-6
    assert distances[2] < distances[1] < distances[0]


def test_directions_without_energy_stay_and_do_no_harm() -> None:
    moment = torch.diag(torch.tensor([4.0, 1.0, 0.0, 0.0]))
    basis = iterate(moment, torch.eye(4)[:, :3], rounds=2)
    assert departure(basis) <= 1e-6
    assert captured_energy(moment, basis) == pytest.approx(1.0)
    assert captured_energy(torch.zeros(4, 4), basis) == 0.0


def test_no_rounds_is_an_error() -> None:
    with pytest.raises(InputError, match="rounds is 0"):
        TrackedSubspace(0.9, rounds=0)
