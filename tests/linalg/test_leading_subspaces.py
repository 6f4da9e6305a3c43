from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import Tensor

from warp_unlearning.errors import InputError
from warp_unlearning.linalg.leading_subspaces import _chebyshev, leading_subspaces, products_pay
from warp_unlearning.linalg.orthonormal import Doubt, doubtful_step
from warp_unlearning.linalg.principal_subspaces import principal_subspaces
from warp_unlearning.linalg.subspace import Subspace, principal_subspace

D = 240


def moment(values: Tensor, *, seed: int = 0) -> Tensor:
    """A matrix with these eigenvalues."""
    draw = torch.Generator().manual_seed(seed)
    vectors = torch.linalg.qr(torch.randn(len(values), len(values), generator=draw, dtype=torch.float64)).Q
    made: Tensor = (vectors * values) @ vectors.mT
    return (made + made.mT) / 2


def power_law(exponent: float, *, d: int = D) -> Tensor:
    return torch.arange(1, d + 1, dtype=torch.float64) ** -exponent


def angle(a: Subspace, b: Subspace) -> float:
    """The sine of the largest angle between two subspaces of one rank."""
    outside: Tensor = a.basis - b.basis @ (b.basis.mT @ a.basis)
    return float(torch.linalg.matrix_norm(outside, 2))


SPECTRA = {
    "slow decay": power_law(1.6),
    "fast decay": power_law(4.0),
    "one giant": torch.cat([torch.tensor([1e6], dtype=torch.float64), power_law(1.8, d=D - 1)]),
    "exponential": torch.exp(-0.2 * torch.arange(D, dtype=torch.float64)),
    "equal ones": torch.cat([torch.full((12,), 5.0, dtype=torch.float64), 0.001 * power_law(0.5, d=D - 12)]),
    "low rank": torch.cat([power_law(1.0, d=20), torch.zeros(D - 20, dtype=torch.float64)]),
}


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("fraction", [0.5, 0.9])
def test_agrees_with_an_eigendecomposition(name: str, fraction: float) -> None:
    c = moment(SPECTRA[name])
    exact = principal_subspace(c, fraction)
    (found,) = leading_subspaces([c], fraction)
    if name in ("low rank", "one giant"):
        # Rounding errors are all there is of the columns that would be spare, or of all but one.
        assert found is None or angle(found, exact) < 1e-6
        return
    assert found is not None
    assert found.captured == pytest.approx(exact.captured, rel=1e-9)
    eye = torch.eye(found.rank, dtype=torch.float64)
    torch.testing.assert_close(found.basis.mT @ found.basis, eye, atol=1e-10, rtol=0)
    if name != "equal ones":
        assert found.rank == exact.rank
        assert angle(found, exact) < 1e-6


def test_residuals_are_as_small_as_promised() -> None:
    c = moment(power_law(1.7))
    (found,) = leading_subspaces([c], 0.9)
    assert found is not None
    within = found.basis.mT @ c @ found.basis
    residual = torch.linalg.matrix_norm(c @ found.basis - found.basis @ within)
    assert float(residual) < 1e-6 * float(torch.linalg.eigvalsh(within)[0]) * found.rank


def test_no_answer_where_many_directions_are_needed() -> None:
    assert leading_subspaces([moment(power_law(0.1))], 0.99) == [None]


def test_no_answer_where_there_is_nothing_or_no_number() -> None:
    zero = torch.zeros(64, 64, dtype=torch.float64)
    bad = moment(power_law(2.0, d=64))
    bad[3, 5] = float("nan")
    assert leading_subspaces([zero, bad], 0.9) == [None, None]
    assert leading_subspaces([], 0.9) == []


def test_no_answer_where_a_step_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0

    def failing(columns: Tensor) -> tuple[Tensor, Doubt]:
        nonlocal steps
        steps += 1
        q, doubt = doubtful_step(columns)
        # As a Cholesky factor that does not exist leaves it; the first four are those of the start.
        return (q * float("nan") if steps > 4 else q), doubt

    monkeypatch.setattr("warp_unlearning.linalg.leading_subspaces.doubtful_step", failing)
    assert leading_subspaces([moment(power_law(2.0))], 0.9) == [None]
    assert steps > 4


def test_no_answer_where_it_did_not_converge() -> None:
    # The cut is in the middle of eigenvalues that hardly differ, more of them than there are columns.
    values = torch.cat([torch.linspace(1.02, 1.0, 55), 1e-6 * torch.ones(D - 55)]).double()
    assert leading_subspaces([moment(values)], 0.5) == [None]


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_the_polynomials_are_those_of_chebyshev(degree: int) -> None:
    angles = torch.linspace(0, 3, 7, dtype=torch.float64)
    found = _chebyshev(torch.diag(angles.cos()), torch.eye(7, dtype=torch.float64), degree)
    torch.testing.assert_close(found, torch.diag((degree * angles).cos()))


def test_a_matrix_of_few_rows_is_refused() -> None:
    with pytest.raises(InputError, match="fewer than 4 rows; decompose it"):
        leading_subspaces([torch.eye(3, dtype=torch.float64)], 0.9)


def test_each_of_many_has_its_own_answer() -> None:
    given = [moment(power_law(2.0), seed=1), moment(power_law(0.1), seed=2), moment(power_law(3.0, d=100), seed=3)]
    found = leading_subspaces(given, 0.95)
    assert found[1] is None
    for place in (0, 2):
        each, exact = found[place], principal_subspace(given[place], 0.95)
        assert each is not None
        assert each.rank == exact.rank
        assert angle(each, exact) < 1e-6


def test_the_same_each_time() -> None:
    c = moment(power_law(2.0))
    first, second = leading_subspaces([c, c], 0.9)
    assert first is not None
    assert second is not None
    assert torch.equal(first.basis, second.basis)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("exponent", [0.3, 1.8])
def test_large_ones_on_a_gpu_agree_with_the_host(exponent: float) -> None:
    c = moment(power_law(exponent, d=1100))
    exact = principal_subspace(c, 0.99)
    (found,) = principal_subspaces([c.cuda()], 0.99)
    assert found.rank == exact.rank
    assert angle(Subspace(found.basis.cpu(), found.captured), exact) < 1e-6


class OnAGpu:
    """As much of a second moment as the question needs."""

    is_cuda = True

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows


@pytest.mark.parametrize(
    ("rows", "rank", "pays"),
    [(999, None, False), (1000, None, True), (1000, 250, True), (1000, 251, False), (2304, 40, True)],
)
def test_products_are_tried_where_few_directions_were_needed(rows: int, rank: int | None, pays: bool) -> None:
    assert products_pay(cast(Tensor, OnAGpu(rows)), rank) is pays
    assert not products_pay(torch.eye(1000), rank)
