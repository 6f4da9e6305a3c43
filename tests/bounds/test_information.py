"""The bounds against the true information and the least error of mixtures, which tests/oracles computes."""

from itertools import pairwise
from math import e, inf, log, nan, pi

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.integrate import quad
from tests.oracles.gaussian_mixture import Mixture, information, information_bound, least_error, random_mixture

from warp_unlearning.bounds.information import (
    diagonal_information_bound,
    entropy_floor,
    floor_ratio,
    log_normal_gain,
    sampled_gain,
)
from warp_unlearning.errors import InputError

WEIGHTS = np.array([0.3, 0.7])
SNR = np.array([[0.5, 4.0, 0.0], [2.0, 10.0, 1e-4]])


def label_entropy(mixture: Mixture) -> float:
    return -float(mixture.weights @ np.log(mixture.weights))


def diagonals(mixture: Mixture) -> np.ndarray:
    return np.stack([np.diag(c) for c in mixture.covariances])


def flattened(mixture: Mixture) -> Mixture:
    return Mixture(mixture.weights, mixture.means, np.stack([np.diag(d) for d in diagonals(mixture)]))


@pytest.mark.parametrize("dimensions", [1, 3, 3072])
def test_a_gaussian_of_one_variance_reaches_the_floor(dimensions: int) -> None:
    entropy = 0.5 * dimensions * log(2 * pi * e * 9.0)
    assert entropy_floor(entropy, dimensions=dimensions) == pytest.approx(9.0, rel=1e-12)
    ratio = entropy_floor(2.5, dimensions=dimensions) / entropy_floor(1.0, dimensions=dimensions)
    assert floor_ratio(1.5, dimensions=dimensions) == pytest.approx(ratio, rel=1e-12)


@pytest.mark.parametrize("dimensions", [0, -1, 2.0, True])
def test_bad_dimensions_are_refused(dimensions: int) -> None:
    with pytest.raises(InputError, match="whole number of at least 1"):
        entropy_floor(0.0, dimensions=dimensions)


@pytest.mark.parametrize("entropy", [inf, -inf, nan, 1e6])
def test_an_entropy_without_a_floor_is_refused(entropy: float) -> None:
    with pytest.raises(InputError, match=f"the entropy is {entropy}"):
        entropy_floor(entropy, dimensions=2)


def test_the_oracles_agree_with_integrals() -> None:
    """One number: the information by scipy's quadrature, the least error by posterior means on a grid."""
    mixture = Mixture(np.array([0.4, 0.6]), np.array([[0.0], [3.0]]), np.array([[[1.0]], [[0.5]]]))
    noise, generator = 0.7, np.random.default_rng(3)
    seen = mixture.noisy(np.array([[noise]]))

    def entropy_density(g: float) -> float:
        log_p = float(seen.log_density(np.array([[g]]))[0])
        return -np.exp(log_p) * log_p

    exact = quad(entropy_density, -12, 15, limit=200)[0] - 0.5 * np.log(2 * np.pi * np.e * noise)
    value, error = information(mixture, np.array([[noise]]), 40_000, generator)
    assert value == pytest.approx(exact, abs=4 * error)
    x = mixture.draw(4000, generator)[:, 0]
    g = x + np.sqrt(noise) * generator.standard_normal(len(x))
    grid = np.linspace(-6, 8, 1401)
    likely = np.exp(mixture.log_density(grid[:, None]) - 0.5 * (g[:, None] - grid) ** 2 / noise)
    squared = (x - (likely @ grid) / likely.sum(1)) ** 2
    value, error = least_error(mixture, np.array([[noise]]), 20_000, generator)
    assert value == pytest.approx(squared.mean(), abs=4 * (squared.std() / np.sqrt(len(x)) + error))


def test_the_bound_is_that_of_determinants_on_diagonals_and_above_it_elsewhere() -> None:
    generator = np.random.default_rng(5)
    mixture, gamma = random_mixture(generator, 3, 4), generator.uniform(0.2, 2.0, size=4)
    found = diagonal_information_bound(mixture.weights, diagonals(mixture) / gamma)
    assert information_bound(flattened(mixture), np.diag(gamma)) == pytest.approx(found, rel=1e-12)
    assert information_bound(mixture, np.diag(gamma)) < found - 0.1


@pytest.mark.parametrize("seed", range(100, 106))
def test_the_true_information_is_below_the_bound(seed: int) -> None:
    """In 1 to 3 dimensions; on diagonals the bound is off by the entropy of the component at most."""
    generator = np.random.default_rng(seed)
    size = seed % 3 + 1
    mixture, gamma = random_mixture(generator, 3, size), generator.uniform(0.2, 0.6, size=size)
    bound = diagonal_information_bound(mixture.weights, diagonals(mixture) / gamma)
    value, error = information(mixture, np.diag(gamma), 20_000, generator)
    assert value - 4 * error < bound
    value, error = information(flattened(mixture), np.diag(gamma), 20_000, generator)
    assert value - 4 * error < bound < value + label_entropy(mixture) + 4 * error


def test_components_far_apart_reach_the_bound() -> None:
    mixture = Mixture(np.array([0.25, 0.75]), np.array([[0.0], [100.0]]), np.array([[[1.0]], [[2.0]]]))
    value, error = information(mixture, np.array([[0.5]]), 40_000, np.random.default_rng(0))
    assert diagonal_information_bound(mixture.weights, [[2.0], [4.0]]) == pytest.approx(value, abs=4 * error)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_least_error_is_above_the_floor(size: int) -> None:
    """Of the true entropy that is left, and so of the bound's."""
    generator = np.random.default_rng(size)
    mixture, gamma = random_mixture(generator, 2, size), generator.uniform(0.2, 0.6, size=size)
    entropy = -float(mixture.log_density(mixture.draw(50_000, generator)).mean())
    learned = information(mixture, np.diag(gamma), 50_000, generator)[0]
    bound = diagonal_information_bound(mixture.weights, diagonals(mixture) / gamma)
    value, error = least_error(mixture, np.diag(gamma), 10_000, generator)
    floor = entropy_floor(entropy - learned, dimensions=size)
    assert entropy_floor(entropy - bound, dimensions=size) < floor < value - 4 * error
    assert floor > 0.3 * value


def test_an_isotropic_gaussian_in_isotropic_noise_reaches_the_floor_and_no_other() -> None:
    """X ~ N(0, diag v) in noise 0.5 keeps the variances 1 / (1/v + 1/0.5)."""
    for variances, reached in (([2.0, 2.0, 2.0], True), ([2.0, 0.1, 1.0], False)):
        v = np.array(variances)
        entropy = 0.5 * np.log(2 * np.pi * np.e * v).sum()
        floor = entropy_floor(entropy - diagonal_information_bound([1.0], v[None] / 0.5), dimensions=3)
        least = float((1 / (1 / v + 2)).mean())
        assert least == pytest.approx(floor, rel=1e-12) if reached else least > 1.05 * floor


def test_the_gain_is_the_loss_of_the_bound_draw_by_draw() -> None:
    """The bound without less that with teleportation, by determinants, is ½ Σ π Σ Δψ."""
    logs = np.random.default_rng(0).normal(size=(60, 3))
    gamma = np.array([0.5, 2.0, 1.0])
    mixture = Mixture(WEIGHTS, np.zeros((2, 3)), np.stack([np.diag(row * gamma) for row in SNR]))
    moved = [information_bound(mixture.rescaled(np.exp(0.5 * row)), np.diag(gamma)) for row in logs]
    gain = sampled_gain(WEIGHTS, SNR, logs)
    assert diagonal_information_bound(WEIGHTS, SNR) - np.mean(moved) == pytest.approx(0.5 * gain.value, rel=1e-10)
    assert np.std(moved, ddof=1) / np.sqrt(60) == pytest.approx(0.5 * gain.standard_error, rel=1e-10)
    assert gain.draws == 60
    per_number = sampled_gain(WEIGHTS, SNR, logs, dimensions=6)
    assert (6 * per_number.value, 6 * per_number.standard_error) == pytest.approx((gain.value, gain.standard_error))


def test_an_attacker_who_does_not_know_the_ratio_learns_less_than_the_bound() -> None:
    """One number: p(g|u) and p(g) are mixtures over the ratios, which makes I(u; g) a Monte Carlo of known terms."""
    generator = np.random.default_rng(2)
    ratios = np.exp(0.8 * generator.standard_normal(400))
    gain = sampled_gain([1.0], [[8.0]], 2 * np.log(ratios)[:, None]).value
    bound = diagonal_information_bound([1.0], [[8.0]]) - 0.5 * gain
    u = 2 * generator.standard_normal(3000)
    g = ratios[generator.integers(400, size=3000)] * u + np.sqrt(0.5) * generator.standard_normal(3000)

    def log_normal(x: np.ndarray, variance: np.ndarray) -> np.ndarray:
        return -0.5 * x**2 / variance - 0.5 * np.log(2 * np.pi * variance)

    given = np.logaddexp.reduce(log_normal(g[:, None] - ratios * u[:, None], np.array(0.5)), axis=1)
    marginal = np.logaddexp.reduce(log_normal(g[:, None], 4.0 * ratios**2 + 0.5), axis=1)
    learned = given - marginal
    assert learned.mean() + 4 * learned.std() / np.sqrt(3000) < bound


def test_ratios_of_one_gain_exactly_nothing_and_huge_ones_are_logarithms() -> None:
    assert sampled_gain(WEIGHTS, SNR, np.zeros((3, 3))).value == 0.0
    found = sampled_gain([1.0], [[2.0]], np.full((2, 1), 2000.0))
    assert found.value == pytest.approx(np.log(3.0) - 2000 - np.log(2.0))


laws = arrays(np.float64, st.tuples(st.integers(2, 12), st.integers(1, 4)), elements=st.floats(-15, 15))


@given(laws, st.floats(-12, 12))
def test_jensen_both_ways(logs: np.ndarray, log_alpha: float) -> None:
    """Any draws taken as the law itself: with E[r²] = 1 none lowers the floor, with E[log r²] = 0 none raises it, and
    the weights of a path from input to output, whose ratios multiply to 1, gain nothing together.
    """

    def gain(drawn: np.ndarray) -> float:
        return sampled_gain([1.0], np.full((1, drawn.shape[1]), np.exp(log_alpha)), drawn).value

    level = float(np.log1p(np.exp(log_alpha)))
    rounding = 1e-9 * (1 + level)
    for column in logs.T[..., None]:
        matched = gain(column - np.log(np.exp(column).mean()))
        assert matched >= -rounding
        assert matched > 0 or abs(log_alpha) >= 4 or np.ptp(column) <= 0.1
        assert gain(column - column.mean()) <= rounding
    assert gain(np.concatenate([logs, -logs.sum(1, keepdims=True)], axis=1)) <= 1e-9 * (1 + (logs.shape[1] + 1) * level)


@pytest.mark.parametrize(
    ("weights", "snr", "logs", "message"),
    [
        ([0.5, 0.6], np.ones((2, 1)), np.zeros((2, 1)), "add up to 1"),
        ([1.0, 0.0], np.ones((2, 1)), np.zeros((2, 1)), "above 0"),
        ([1.0], np.ones((2, 1)), np.zeros((2, 1)), r"shape \(2, 1\) for 1 mixture weights"),
        ([1.0], -np.ones((1, 1)), np.zeros((2, 1)), "finite numbers of at least 0"),
        ([1.0], np.ones((1, 2)), np.zeros((2, 1)), "at least 2 finite rows of 2"),
        ([1.0], np.ones((1, 2)), np.zeros((1, 2)), "at least 2 finite rows of 2"),
        ([1.0], np.ones((1, 1)), np.full((2, 1), np.nan), "at least 2 finite rows of 1"),
    ],
)
def test_bad_input_is_named(weights: list[float], snr: np.ndarray, logs: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        sampled_gain(weights, snr, logs)


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


def test_spreads_and_ratios_that_make_no_gain_are_named() -> None:
    for spread in (0.0, -1.0, np.nan, np.inf, True):
        with pytest.raises(InputError, match="a number above 0"):
            log_normal_gain(1.0, spread)
    for snr in (-1.0, np.nan, np.inf):
        with pytest.raises(InputError, match=f"a signal-to-noise ratio is {snr}"):
            log_normal_gain(np.array([1.0, snr]), 0.5)
