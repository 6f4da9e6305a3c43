"""What is estimated is compared with a closed form, a grid, or estimators that could be better and are not."""

import numpy as np
import pytest
from scipy.integrate import quad

from warp_unlearning.bounds.entropy_floor import entropy_floor
from warp_unlearning.bounds.minimal_error import (
    gaussian_entropy,
    gaussian_error,
    mixture_error,
    mixture_information,
    posterior_covariance,
)
from warp_unlearning.bounds.mixture import Mixture
from warp_unlearning.errors import InputError

PRIOR = np.array([[2.0, 0.6], [0.6, 1.0]])
MAP = np.array([[1.0, 0.5], [-0.3, 2.0], [0.2, 0.1]])
NOISE = np.diag([0.5, 0.2, 1.0])


def two(dimensions: int, apart: float) -> Mixture:
    means = np.zeros((2, dimensions))
    means[1, 0] = apart
    scale = np.array([1.0, 0.5])
    return Mixture(np.array([0.4, 0.6]), means, scale[:, None, None] * np.eye(dimensions))


def test_one_number_has_the_textbook_posterior() -> None:
    """N(0, 2) seen in noise of variance 0.5: 1 / (1/2 + 1/0.5)."""
    assert gaussian_error([[2.0]], observe=[[1.0]], noise=[[0.5]]) == pytest.approx(0.4)


def test_the_posterior_is_that_of_the_precision_form() -> None:
    precision = np.linalg.inv(PRIOR) + MAP.T @ np.linalg.inv(NOISE) @ MAP
    found = posterior_covariance(PRIOR, observe=MAP, noise=NOISE)
    assert found == pytest.approx(np.linalg.inv(precision), rel=1e-10)
    assert gaussian_error(PRIOR, observe=MAP, noise=NOISE) == pytest.approx(np.trace(found) / 2, rel=1e-12)


def test_the_entropy_is_that_of_x_less_what_the_gradient_tells() -> None:
    before = 0.5 * np.log((2 * np.pi * np.e) ** 2 * np.linalg.det(PRIOR))
    seen = MAP @ PRIOR @ MAP.T + NOISE
    told = 0.5 * np.log(np.linalg.det(seen) / np.linalg.det(NOISE))
    assert gaussian_entropy(PRIOR, observe=MAP, noise=NOISE) == pytest.approx(before - told, rel=1e-10)


def test_one_component_is_the_gaussian_without_any_error() -> None:
    one = Mixture(np.ones(1), np.array([[3.0, -1.0]]), PRIOR[None])
    found = mixture_error(one, observe=MAP, noise=NOISE, draws=50, generator=np.random.default_rng(0))
    assert found.value == pytest.approx(gaussian_error(PRIOR, observe=MAP, noise=NOISE), rel=1e-10)
    assert found.standard_error < 1e-12


def test_the_error_of_a_mixture_is_the_squared_error_of_its_posterior_mean() -> None:
    """The posterior mean by a grid over x, for one number; and no line in g does as well."""
    mixture, generator = two(1, 3.0), np.random.default_rng(3)
    noise = 0.7
    found = mixture_error(mixture, observe=[[1.0]], noise=[[noise]], draws=20_000, generator=generator)
    x = mixture.draw(4000, generator=generator)[:, 0]
    g = x + np.sqrt(noise) * generator.standard_normal(len(x))
    grid = np.linspace(-6, 8, 1401)
    prior = np.exp(mixture.log_density(grid[:, None]))
    likely = prior * np.exp(-0.5 * (g[:, None] - grid) ** 2 / noise)
    guess = (likely @ grid) / likely.sum(1)
    squared = (x - guess) ** 2
    assert found.value == pytest.approx(squared.mean(), abs=4 * squared.std() / np.sqrt(len(x)))
    slope, offset = np.polyfit(g, x, 1)
    assert np.mean((x - slope * g - offset) ** 2) > found.value + 0.02


@pytest.mark.parametrize(("dimensions", "apart"), [(1, 3.0), (2, 2.0), (3, 6.0)])
def test_the_least_error_is_above_the_entropy_floor(dimensions: int, apart: float) -> None:
    mixture, noise = two(dimensions, apart), 0.5 * np.eye(dimensions)
    generator = np.random.default_rng(dimensions)
    points = mixture.draw(50_000, generator=generator)
    told = mixture_information(mixture, noise=noise, draws=50_000, generator=generator)
    left = -float(mixture.log_density(points).mean()) - told.value
    error = mixture_error(mixture, observe=np.eye(dimensions), noise=noise, draws=20_000, generator=generator)
    floor = entropy_floor(left, dimensions=dimensions)
    assert error.value > floor
    assert floor > 0.3 * error.value


def test_an_isotropic_gaussian_meets_the_floor() -> None:
    known = {"observe": np.eye(3), "noise": 0.5 * np.eye(3)}
    floor = entropy_floor(gaussian_entropy(2 * np.eye(3), **known), dimensions=3)
    assert gaussian_error(2 * np.eye(3), **known) == pytest.approx(floor, rel=1e-12)
    other = np.diag([2.0, 0.1, 1.0])
    assert gaussian_error(other, **known) > 1.05 * entropy_floor(gaussian_entropy(other, **known), dimensions=3)


def test_the_information_of_one_gaussian_has_its_closed_form() -> None:
    one = Mixture(np.ones(1), np.zeros((1, 2)), PRIOR[None])
    found = mixture_information(one, noise=0.3 * np.eye(2), draws=40_000, generator=np.random.default_rng(0))
    exact = 0.5 * np.log(np.linalg.det(PRIOR + 0.3 * np.eye(2)) / 0.09)
    assert found.value == pytest.approx(exact, abs=4 * found.standard_error)
    assert found.standard_error < 0.01


def test_the_information_of_a_mixture_is_that_of_an_integral() -> None:
    mixture, noise = two(1, 3.0), 0.4
    seen = mixture.through([[1.0]], [[noise]])

    def entropy(g: float) -> float:
        log_p = float(seen.log_density(np.array([[g]]))[0])
        return -np.exp(log_p) * log_p

    exact = quad(entropy, -12, 15, limit=200)[0] - 0.5 * np.log(2 * np.pi * np.e * noise)
    found = mixture_information(mixture, noise=[[noise]], draws=40_000, generator=np.random.default_rng(5))
    assert found.value == pytest.approx(exact, abs=4 * found.standard_error)


def test_bad_channels_are_named() -> None:
    with pytest.raises(InputError, match="the prior covariance has shape"):
        gaussian_error(np.eye(3), observe=MAP, noise=NOISE)
    with pytest.raises(InputError, match="the noise covariance has shape"):
        gaussian_error(PRIOR, observe=MAP, noise=np.eye(2))
    with pytest.raises(InputError, match="give a matrix"):
        gaussian_error(PRIOR, observe=[1.0, 2.0], noise=np.eye(1))
    with pytest.raises(InputError, match="the covariance of the observation is not positive definite"):
        gaussian_error(np.zeros((1, 1)), observe=[[1.0]], noise=[[0.0]])
