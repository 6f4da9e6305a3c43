from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from warp_unlearning.bounds.log_normal import (
    log_normal_gain,
    log_normal_psi,
    small_spread_error,
    small_spread_gain,
)
from warp_unlearning.errors import InputError


def psi_by_scipy(alpha: float, s: float) -> float:
    def term(z: float) -> float:
        y = s * z - 0.5 * s**2
        return float(np.logaddexp(0.0, np.log(alpha) + y) * np.exp(-0.5 * z**2)) / np.sqrt(2 * np.pi)

    # The bend of the integrand, where α e^Y = 1, is a point that scipy is told of.
    bend = float(np.clip((0.5 * s**2 - np.log(alpha)) / s, -37.0, 37.0))
    points = [-38.0, *sorted({-5.0, bend, 0.0, 5.0}), 38.0]
    return sum(quad(term, a, b, epsabs=0, epsrel=1e-12, limit=200)[0] for a, b in pairwise(points))


@pytest.mark.parametrize("alpha", [1e-6, 0.3, 5.0, 1e8])
@pytest.mark.parametrize("s", [0.05, 0.7, 3.0, 12.0, 40.0])
def test_psi_agrees_with_an_adaptive_integral(alpha: float, s: float) -> None:
    found = log_normal_psi(alpha, s)
    exact = psi_by_scipy(alpha, s)
    assert float(found.values) == pytest.approx(exact, rel=1e-9, abs=1e-11 * np.log1p(alpha))
    assert found.error <= 1e-10 * max(1.0, np.log1p(alpha))


@pytest.mark.parametrize(("alpha", "s"), [(0.5, 0.4), (20.0, 1.0), (3.0, 2.5)])
def test_quadrature_is_monte_carlo_within_its_error(alpha: float, s: float) -> None:
    y = s * np.random.default_rng(0).standard_normal(200_000) - 0.5 * s**2
    sampled = np.log1p(alpha * np.exp(y))
    error = sampled.std() / np.sqrt(len(y))
    assert float(log_normal_psi(alpha, s).values) == pytest.approx(sampled.mean(), abs=4 * error)


def test_small_gains_keep_their_digits() -> None:
    """Where log(1 + α) and ψ agree in all digits but a few, their difference is that of the series."""
    for alpha in (1e-3, 2.0, 1e6):
        s = 1e-4
        share = alpha / (1 + alpha)
        series = 0.5 * share**2 * np.expm1(s**2) - share**3 * (1 - 0.75 * share) * s**4
        assert float(log_normal_gain(alpha, s).values) == pytest.approx(series, rel=1e-7)


def test_large_ratios_have_the_gain_of_half_the_variance() -> None:
    """log(1 + α e^Y) → log α + Y, whose mean is log α − s²/2."""
    assert float(log_normal_gain(1e200, 3.0).values) == pytest.approx(4.5, rel=1e-9)


def test_arrays_keep_their_shape_and_silent_coordinates_gain_nothing() -> None:
    snr = np.array([[0.0, 1.0, 5.0], [2.0, 0.0, 1e-12]])
    found = log_normal_gain(snr, 0.8).values
    assert found.shape == (2, 3)
    assert (found[snr == 0] == 0).all()
    assert float(found[0, 2]) == pytest.approx(float(log_normal_gain(5.0, 0.8).values), rel=1e-12)


@given(st.floats(-30, 30), st.floats(1e-3, 20))
def test_jensen_no_energy_preserving_log_normal_lowers_the_floor(log_alpha: float, s: float) -> None:
    alpha = float(np.exp(log_alpha))
    gain = float(log_normal_gain(alpha, s).values)
    assert gain >= 0
    assert gain <= np.log1p(alpha) * (1 + 1e-12) + 1e-15


@given(st.floats(-10, 10), st.floats(0.01, 5), st.floats(1.05, 3))
def test_more_spread_gains_more(log_alpha: float, s: float, factor: float) -> None:
    """A log-normal of mean 1 and larger s is a mean-preserving spread of one with less."""
    alpha = np.exp(log_alpha)
    assert float(log_normal_gain(alpha, s * factor).values) > float(log_normal_gain(alpha, s).values)


@pytest.mark.parametrize("alpha", [0.5, 5.0, 100.0])
def test_the_expansion_is_off_by_the_fourth_power_of_the_spread(alpha: float) -> None:
    spreads = np.array([0.02, 0.03, 0.045, 0.07, 0.1])
    errors = np.array([float(log_normal_gain(alpha, s).values - small_spread_gain(alpha, s)) for s in spreads])
    slope = np.polyfit(np.log(spreads), np.log(np.abs(errors)), 1)[0]
    assert slope == pytest.approx(4.0, abs=0.05)
    assert (errors < 0).all()
    leading = [float(small_spread_error(alpha, s)) for s in spreads]
    assert errors == pytest.approx(leading, rel=0.05)
    assert errors[0] == pytest.approx(leading[0], rel=0.002)


def test_the_expansion_is_half_the_squared_share_of_the_variance() -> None:
    assert float(small_spread_gain(3.0, 0.2)) == pytest.approx(0.5 * 0.75**2 * (np.exp(0.04) - 1), rel=1e-12)


@pytest.mark.parametrize("spread", [0.0, -1.0, np.nan, np.inf, True])
def test_spreads_that_are_none_are_refused(spread: float) -> None:
    for call in (log_normal_gain, log_normal_psi, small_spread_gain, small_spread_error):
        with pytest.raises(InputError, match="a number above 0"):
            call(1.0, spread)


@pytest.mark.parametrize("snr", [-1.0, np.nan, np.inf])
def test_ratios_that_are_none_are_named(snr: float) -> None:
    with pytest.raises(InputError, match=f"a signal-to-noise ratio is {snr}"):
        log_normal_gain(np.array([1.0, snr]), 0.5)
