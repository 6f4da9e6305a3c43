import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from warp_unlearning.attacks.membership.background_fit import BackgroundFit, exact_products, exact_squares
from warp_unlearning.errors import InputError

Floats = NDArray[np.float64]


def direct(background: Floats, rows: Floats, ridge: float) -> Floats:
    """The d×d solve."""
    v = rows - background.mean(0)
    covariance = np.atleast_2d(np.cov(background, rowvar=False))
    return np.einsum("id,id->i", v, np.linalg.solve(covariance + ridge * np.eye(v.shape[1]), v.T).T)


def fitted(
    background: Floats, *, ridge: float = 1e-3, relative: bool = False, about: Floats | None = None
) -> BackgroundFit:
    centre = torch.from_numpy(background.mean(0) if about is None else about)
    return BackgroundFit(torch.from_numpy(background) - centre, centre, ridge=ridge, relative=relative)


@given(
    seed=st.integers(0, 999),
    m=st.integers(2, 40),
    d=st.integers(1, 40),
    ridge=st.sampled_from([1e-3, 1e-1, 10.0]),
    scale=st.sampled_from([1e-2, 1.0, 10.0]),
)
def test_the_dual_form_is_the_direct_solve(seed: int, m: int, d: int, ridge: float, scale: float) -> None:
    rng = np.random.default_rng(seed)
    background = scale * rng.normal(size=(m, d)) @ rng.normal(size=(d, d)) + rng.normal(size=d)
    rows = scale * rng.normal(size=(5, d)) + rng.normal(size=d)
    found = fitted(background, ridge=ridge).statistic(torch.from_numpy(rows))
    assert found.dtype == torch.float64
    # The direct solve loses digits of its own where the covariance dwarfs the ridge.
    condition = np.linalg.norm(background - background.mean(0), 2) ** 2 / (m - 1) / ridge
    np.testing.assert_allclose(found, direct(background, rows, ridge), rtol=1e-10 + 1e-15 * condition, atol=1e-10)


@pytest.mark.parametrize(("m", "d"), [(60, 20), (20, 60), (21, 20), (20, 20)])
def test_to_ten_digits_at_the_default_ridge(m: int, d: int) -> None:
    rng = np.random.default_rng(20)
    background, rows = rng.standard_t(3, size=(m, d)), rng.standard_t(3, size=(50, d))
    found = fitted(background).statistic(torch.from_numpy(rows))
    np.testing.assert_allclose(found, direct(background, rows, 1e-3), rtol=1e-10)


def test_a_ridge_below_rounding_leaves_finite_values_of_the_right_size() -> None:
    rng = np.random.default_rng(21)
    background, rows = rng.normal(size=(20, 60)), rng.normal(size=(5, 60))
    found = fitted(background, ridge=1e-17).statistic(torch.from_numpy(rows))
    orthogonal = np.linalg.qr((background - background.mean(0)).T)[0][:, :19]
    v = rows - background.mean(0)
    np.testing.assert_allclose(found, ((v - v @ orthogonal @ orthogonal.T) ** 2).sum(1) / 1e-17, rtol=0.05)


def test_the_dual_formula_as_it_is_written() -> None:
    rng = np.random.default_rng(22)
    background, rows, ridge = rng.normal(size=(12, 30)), rng.normal(size=(4, 30)), 0.05
    x, v = background - background.mean(0), rows - background.mean(0)
    z = x @ v.T
    inner = (z * np.linalg.solve(x @ x.T + ridge * 11 * np.eye(12), z)).sum(0)
    expected = ((v**2).sum(1) - inner) / ridge
    np.testing.assert_allclose(fitted(background, ridge=ridge).statistic(torch.from_numpy(rows)), expected, rtol=1e-10)


def test_repeated_background_rows_and_a_candidate_among_them() -> None:
    rng = np.random.default_rng(23)
    background = np.repeat(rng.normal(size=(4, 10)), 3, axis=0)
    rows = np.concatenate([background[:1], rng.normal(size=(2, 10))])
    fit = fitted(background)
    np.testing.assert_allclose(fit.statistic(torch.from_numpy(rows)), direct(background, rows, 1e-3), rtol=1e-9)


def test_where_the_rows_are_taken_about_does_not_matter() -> None:
    rng = np.random.default_rng(24)
    background, rows = rng.normal(size=(15, 25)), torch.from_numpy(rng.normal(size=(4, 25)))
    elsewhere = fitted(background, about=background.mean(0) + rng.normal(size=25))
    np.testing.assert_allclose(elsewhere.statistic(rows), fitted(background).statistic(rows), rtol=1e-10)


def test_float32_rows_about_a_rounded_mean() -> None:
    rng = np.random.default_rng(25)
    background = (1000 + rng.normal(size=(30, 80))).astype(np.float32)
    rows = (1000 + rng.normal(size=(6, 80))).astype(np.float32)
    about = torch.from_numpy(background.mean(0, dtype=np.float64)).float()
    fit = BackgroundFit(torch.from_numpy(background) - about, about, ridge=1e-3, relative=False)
    expected = direct(background.astype(np.float64), rows.astype(np.float64), 1e-3)
    np.testing.assert_allclose(fit.statistic(torch.from_numpy(rows)), expected, rtol=1e-6)


def test_a_relative_ridge_is_in_units_of_the_mean_variance() -> None:
    rng = np.random.default_rng(26)
    background, rows = 1e-4 * rng.normal(size=(10, 30)), 1e-4 * rng.normal(size=(3, 30))
    fit = fitted(background, ridge=0.1, relative=True)
    assert fit.ridge == pytest.approx(0.1 * background.var(0, ddof=1).mean(), rel=1e-12)
    np.testing.assert_allclose(fit.statistic(torch.from_numpy(rows)), direct(background, rows, fit.ridge), rtol=1e-10)
    larger = fitted(1e3 * background, ridge=0.1, relative=True).statistic(torch.from_numpy(1e3 * rows))
    np.testing.assert_allclose(larger, fit.statistic(torch.from_numpy(rows)), rtol=1e-10)


def test_no_coordinates() -> None:
    fit = BackgroundFit(torch.empty(5, 0), torch.empty(0), ridge=1e-3, relative=True)
    assert fit.statistic(torch.empty(3, 0)).tolist() == [0.0, 0.0, 0.0]


def test_one_row_is_no_background() -> None:
    with pytest.raises(InputError, match="1 rows has no covariance"):
        BackgroundFit(torch.ones(1, 3), torch.ones(3), ridge=1e-3, relative=False)


def test_products_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warp_unlearning.attacks.membership.background_fit._COPIED", 40)
    rng = np.random.default_rng(27)
    a, b = (torch.from_numpy(rng.normal(size=(n, 23)).astype(np.float32)) for n in (4, 3))
    np.testing.assert_allclose(exact_products(a, b), a.double() @ b.double().T, rtol=1e-14)
    np.testing.assert_allclose(exact_squares(a), a.double().square().sum(1), rtol=1e-14)


@pytest.mark.parametrize("size", [5, 30])
def test_factors_and_eigenvalues_agree(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    rng = np.random.default_rng(28)
    background, rows = rng.normal(size=(size, 20)), torch.from_numpy(rng.normal(size=(4, 20)))
    factored = fitted(background, ridge=1e-3, relative=True)
    monkeypatch.setattr("warp_unlearning.attacks.membership.background_fit._RESOLVED", float("inf"))
    by_eigenvalues = fitted(background, ridge=1e-3, relative=True)
    assert factored.ridge == by_eigenvalues.ridge
    np.testing.assert_allclose(factored.statistic(rows), by_eigenvalues.statistic(rows), rtol=1e-9)


def test_a_ridge_within_rounding_still_has_finite_scores() -> None:
    rng = np.random.default_rng(29)
    background = rng.normal(size=(12, 4)) @ rng.normal(size=(4, 30))
    found = fitted(background, ridge=1e-18).statistic(torch.from_numpy(rng.normal(size=(3, 30))))
    assert bool(found.isfinite().all())
    assert bool((found > 0).all())
