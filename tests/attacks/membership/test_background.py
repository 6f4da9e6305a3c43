import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.oracles.uniform import uniform_on_grid

from warp_unlearning.attacks.membership.background import BackgroundFit, fit_backgrounds, most_variant, parts_of
from warp_unlearning.errors import InputError
from warp_unlearning.stats.exchange import conformal_p

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
    columns = torch.arange(background.shape[1])
    return BackgroundFit(columns, torch.from_numpy(background) - centre, centre, ridge=ridge, relative=relative)


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
    found = fitted(background, ridge=ridge).distance(torch.from_numpy(rows))
    assert found.dtype == torch.float64
    # The direct solve loses digits of its own where the covariance dwarfs the ridge.
    condition = np.linalg.norm(background - background.mean(0), 2) ** 2 / (m - 1) / ridge
    np.testing.assert_allclose(found, direct(background, rows, ridge), rtol=1e-10 + 1e-15 * condition, atol=1e-10)


@pytest.mark.parametrize(("m", "d"), [(60, 20), (20, 60), (21, 20), (20, 20)])
def test_to_ten_digits_at_the_default_ridge(m: int, d: int) -> None:
    rng = np.random.default_rng(20)
    background, rows = rng.standard_t(3, size=(m, d)), rng.standard_t(3, size=(50, d))
    found = fitted(background).distance(torch.from_numpy(rows))
    np.testing.assert_allclose(found, direct(background, rows, 1e-3), rtol=1e-10)


def test_a_ridge_below_rounding_leaves_finite_values_of_the_right_size() -> None:
    rng = np.random.default_rng(21)
    background, rows = rng.normal(size=(20, 60)), rng.normal(size=(5, 60))
    found = fitted(background, ridge=1e-17).distance(torch.from_numpy(rows))
    orthogonal = np.linalg.qr((background - background.mean(0)).T)[0][:, :19]
    v = rows - background.mean(0)
    np.testing.assert_allclose(found, ((v - v @ orthogonal @ orthogonal.T) ** 2).sum(1) / 1e-17, rtol=0.05)


def test_repeated_background_rows_and_a_candidate_among_them() -> None:
    rng = np.random.default_rng(23)
    background = np.repeat(rng.normal(size=(4, 10)), 3, axis=0)
    rows = np.concatenate([background[:1], rng.normal(size=(2, 10))])
    fit = fitted(background)
    np.testing.assert_allclose(fit.distance(torch.from_numpy(rows)), direct(background, rows, 1e-3), rtol=1e-9)


def test_where_the_rows_are_taken_about_does_not_matter() -> None:
    rng = np.random.default_rng(24)
    background, rows = rng.normal(size=(15, 25)), torch.from_numpy(rng.normal(size=(4, 25)))
    elsewhere = fitted(background, about=background.mean(0) + rng.normal(size=25))
    np.testing.assert_allclose(elsewhere.distance(rows), fitted(background).distance(rows), rtol=1e-10)


def test_float32_rows_about_a_rounded_mean() -> None:
    rng = np.random.default_rng(25)
    background = (1000 + rng.normal(size=(30, 80))).astype(np.float32)
    rows = (1000 + rng.normal(size=(6, 80))).astype(np.float32)
    about = torch.from_numpy(background.mean(0, dtype=np.float64)).float()
    fit = BackgroundFit(torch.arange(80), torch.from_numpy(background) - about, about, ridge=1e-3, relative=False)
    expected = direct(background.astype(np.float64), rows.astype(np.float64), 1e-3)
    np.testing.assert_allclose(fit.distance(torch.from_numpy(rows)), expected, rtol=1e-6)


def test_a_relative_ridge_is_in_units_of_the_mean_variance() -> None:
    rng = np.random.default_rng(26)
    background, rows = 1e-4 * rng.normal(size=(10, 30)), 1e-4 * rng.normal(size=(3, 30))
    fit = fitted(background, ridge=0.1, relative=True)
    assert fit.ridge == pytest.approx(0.1 * background.var(0, ddof=1).mean(), rel=1e-12)
    np.testing.assert_allclose(fit.distance(torch.from_numpy(rows)), direct(background, rows, fit.ridge), rtol=1e-10)
    larger = fitted(1e3 * background, ridge=0.1, relative=True).distance(torch.from_numpy(1e3 * rows))
    np.testing.assert_allclose(larger, fit.distance(torch.from_numpy(rows)), rtol=1e-10)


def test_no_coordinates() -> None:
    fit = BackgroundFit(torch.empty(0, dtype=torch.long), torch.empty(5, 0), torch.empty(0), ridge=1e-3, relative=True)
    assert fit.distance(torch.empty(3, 0)).tolist() == [0.0, 0.0, 0.0]


def test_a_ridge_within_rounding_still_has_finite_scores() -> None:
    rng = np.random.default_rng(29)
    background = rng.normal(size=(12, 4)) @ rng.normal(size=(4, 30))
    found = fitted(background, ridge=1e-18).distance(torch.from_numpy(rng.normal(size=(3, 30))))
    assert bool(found.isfinite().all())
    assert bool((found > 0).all())


class Rows:
    """Rows in memory, read a few at a time."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, begin: int, end: int) -> torch.Tensor:
        return self.rows[begin:end]


@given(
    seed=st.integers(0, 999),
    m=st.integers(4, 30),
    repetitions=st.integers(1, 2),
    batch=st.integers(1, 31),
    keep=st.sampled_from([0.05, 0.3, 1.0]),
    offset=st.sampled_from([0.0, 1e4]),
)
def test_two_passes_equal_brute_force(
    seed: int, m: int, repetitions: int, batch: int, keep: float, offset: float
) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.lognormal(sigma=2, size=20) * rng.normal(size=(m, 20)) + offset
    rows[:, ::6] = offset  # does not vary
    parts = parts_of(m, repetitions=repetitions, generator=torch.Generator().manual_seed(seed))
    assert sorted(torch.cat(parts).tolist()) == list(range(m))
    before = rows.copy()
    fits = fit_backgrounds(Rows(torch.from_numpy(rows)), parts, keep=keep, ridge=0.1, relative=False, batch_size=batch)
    np.testing.assert_array_equal(rows, before)
    others = rng.normal(size=(3, 20)) + offset
    for fit, part in zip(fits, parts, strict=True):
        own = rows[part.numpy()]
        variance = own.var(0, ddof=1)
        chosen = np.sort(np.argsort(-variance, kind="stable")[: max(1, round(keep * 20))])
        chosen = chosen[variance[chosen] > 1e-12]
        assert (fit.size, fit.coordinates) == (len(part), len(chosen))
        condition = variance.sum() / 0.1
        np.testing.assert_allclose(
            fit.distance(torch.from_numpy(others)),
            direct(own[:, chosen], others[:, chosen], 0.1),
            rtol=1e-8 + (1e-14 * condition if offset else 0),
            atol=1e-6 if offset else 1e-10,
        )


def test_a_variance_far_below_the_squared_mean_survives_in_float32() -> None:
    rng = np.random.default_rng(30)
    rows = torch.from_numpy(rng.normal(size=(64, 3)).astype(np.float32))
    rows[:, 1] = 1e-3 * rows[:, 1] + 1000  # varies by a thousandth of what the last varies by
    (fit,) = fit_backgrounds(Rows(rows), [torch.arange(64)], keep=0.5, ridge=1, relative=False, batch_size=5)
    assert fit.coordinates == 2
    apart = torch.zeros(1, 3)
    apart[0, 0] = 1.0
    assert float(fit.distance(apart)) > 0.1  # the first column is chosen, not the second


@given(variance=st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0]), min_size=1, max_size=12), keep=st.floats(0.01, 1))
def test_the_most_variant_are_those_of_a_sorted_list(variance: list[float], keep: float) -> None:
    order = sorted(range(len(variance)), key=lambda i: (-variance[i], i))[: max(1, round(keep * len(variance)))]
    expected = sorted(i for i in order if variance[i] > 0)
    assert most_variant(torch.tensor(variance), keep).tolist() == expected


@pytest.mark.parametrize(
    ("count", "repetitions", "message"),
    [(9, 5, "9 examples for 5 repetitions"), (1, 1, "1 examples for 1 repetitions"), (9, 2, "give a `generator`")],
)
def test_too_few_for_their_parts(count: int, repetitions: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parts_of(count, repetitions=repetitions, generator=None)


def like_differences(count: int, rng: np.random.Generator, mixing: NDArray[np.float64]) -> torch.Tensor:
    """Heavy-tailed, of a scale that varies from row to row, mostly of low rank, with dead coordinates: like Δ."""
    scale = rng.lognormal(sigma=1.0, size=(count, 1))
    found = scale * (rng.standard_t(3, size=(count, 5)) @ mixing + 0.1 * rng.normal(size=(count, mixing.shape[1])))
    found[:, ::7] = 0.0
    return torch.from_numpy(found)


def test_under_the_null_conformal_p_values_of_new_rows_are_uniform() -> None:
    """A replicate draws its background, its calibration rows and one candidate anew, all from one law."""
    rng = np.random.default_rng(20)
    mixing = rng.normal(size=(5, 60))
    generator = torch.Generator().manual_seed(20)
    p, against_background = [], []
    for replicate in range(1500):
        background = Rows(like_differences(16, rng, mixing))
        parts = parts_of(16, repetitions=1 + replicate % 2, generator=generator)
        relative = replicate % 3 == 0
        fits = fit_backgrounds(background, parts, keep=0.3, ridge=1e-3, relative=relative, batch_size=10)
        fresh, seen = (
            np.mean([fit.distance(some).numpy() for fit in fits], axis=0)
            for some in (like_differences(20, rng, mixing), background.rows)
        )
        p.append(conformal_p(fresh[:1], fresh[1:])[0])
        against_background.append(conformal_p(fresh[:1], seen)[0])
    assert uniform_on_grid(p, 20) > 1e-3
    # Calibrated on the background itself, a candidate always looks strange: the check would notice.
    assert uniform_on_grid(against_background, 17) < 1e-20
