from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from warp_unlearning.bounds.information import log_normal_gain
from warp_unlearning.errors import InputError


def gain(alpha: float, s: float) -> float:
    return float(log_normal_gain(alpha, s))


def psi_by_scipy(alpha: float, s: float) -> float:
    """E log(1 + α e^Y)."""

    def term(z: float) -> float:
        y = s * z - 0.5 * s**2
        return float(np.logaddexp(0.0, np.log(alpha) + y) * np.exp(-0.5 * z**2)) / np.sqrt(2 * np.pi)

    # scipy needs the bend of the integrand, where α e^Y = 1, among its points.
    bend = float(np.clip((0.5 * s**2 - np.log(alpha)) / s, -37.0, 37.0))
    points = [-38.0, *sorted({-5.0, bend, 0.0, 5.0}), 38.0]
    return sum(quad(term, a, b, epsabs=0, epsrel=1e-12, limit=200)[0] for a, b in pairwise(points))


@pytest.mark.parametrize("alpha", [1e-6, 0.3, 5.0, 1e8])
@pytest.mark.parametrize("s", [0.05, 0.7, 3.0, 12.0, 40.0])
def test_the_gain_agrees_with_an_adaptive_integral(alpha: float, s: float) -> None:
    found, exact = log_normal_gain(alpha, s), psi_by_scipy(alpha, s)
    assert np.log1p(alpha) - float(found) == pytest.approx(exact, rel=1e-9, abs=1e-11 * np.log1p(alpha))


@pytest.mark.parametrize("alpha", [1e-3, 2.0, 1e6])
def test_small_gains_keep_their_digits(alpha: float) -> None:
    """Where the two logarithms agree in all digits but a few, their difference is that of the series."""
    s, share = 1e-4, alpha / (1 + alpha)
    series = 0.5 * share**2 * np.expm1(s**2) - share**3 * (1 - 0.75 * share) * s**4
    assert gain(alpha, s) == pytest.approx(series, rel=1e-7)


def test_large_ratios_gain_half_the_variance() -> None:
    """log(1 + α e^Y) → log α + Y, whose mean is log α − s²/2."""
    assert gain(1e200, 3.0) == pytest.approx(4.5, rel=1e-9)


def test_arrays_keep_their_shape_and_silent_coordinates_gain_nothing() -> None:
    snr = np.array([[0.0, 1.0, 5.0], [2.0, 0.0, 1e-12]])
    found = log_normal_gain(snr, 0.8)
    assert found.shape == (2, 3)
    assert (found[snr == 0] == 0).all()
    assert float(found[0, 2]) == pytest.approx(gain(5.0, 0.8), rel=1e-12)


@given(st.floats(-30, 30), st.floats(1e-3, 20))
def test_jensen_no_energy_preserving_log_normal_lowers_the_floor(log_alpha: float, s: float) -> None:
    alpha = float(np.exp(log_alpha))
    assert 0 <= gain(alpha, s) <= np.log1p(alpha) * (1 + 1e-12) + 1e-15


@given(st.floats(-10, 10), st.floats(0.01, 5), st.floats(1.05, 3))
def test_more_spread_gains_more(log_alpha: float, s: float, factor: float) -> None:
    """A log-normal of mean 1 and larger s is a mean-preserving spread of one with less."""
    alpha = float(np.exp(log_alpha))
    assert gain(alpha, s * factor) > gain(alpha, s)


def test_bad_input_is_named() -> None:
    for spread in (0.0, -1.0, np.nan, np.inf, True):
        with pytest.raises(InputError, match="a number above 0"):
            log_normal_gain(1.0, spread)
    for snr in (-1.0, np.nan, np.inf):
        with pytest.raises(InputError, match=f"a signal-to-noise ratio is {snr}"):
            log_normal_gain(np.array([1.0, snr]), 0.5)
