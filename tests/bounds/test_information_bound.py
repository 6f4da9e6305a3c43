"""The bounds against the true information, by Monte Carlo where it has no closed form."""

import numpy as np
import pytest

from warp_unlearning.bounds.diagonal_bound import diagonal_information_bound
from warp_unlearning.bounds.entropy_floor import entropy_floor
from warp_unlearning.bounds.information_bound import information_bound, teleported_information_bound
from warp_unlearning.bounds.minimal_error import gaussian_entropy, mixture_error, mixture_information
from warp_unlearning.bounds.mixture import Mixture
from warp_unlearning.errors import InputError


def random_mixture(generator: np.random.Generator, components: int, size: int) -> Mixture:
    halves = generator.normal(size=(components, size, size))
    weights = generator.dirichlet(np.full(components, 3.0))
    means = 3 * generator.normal(size=(components, size))
    return Mixture(weights, means, halves @ halves.transpose(0, 2, 1) + 0.1 * np.eye(size))


def random_noise(generator: np.random.Generator, size: int) -> np.ndarray:
    half = generator.normal(size=(size, size))
    return 0.3 * half @ half.T + 0.2 * np.eye(size)


def test_one_component_is_met_exactly() -> None:
    generator = np.random.default_rng(0)
    one, noise = random_mixture(generator, 1, 3), random_noise(generator, 3)
    prior = one.covariances[0]
    before = 0.5 * np.log(np.linalg.det(2 * np.pi * np.e * prior))
    left = gaussian_entropy(prior, observe=np.eye(3), noise=noise)
    assert information_bound(one, noise=noise) == pytest.approx(before - left, rel=1e-10)


@pytest.mark.parametrize("seed", range(100, 106))
def test_the_true_information_is_below_the_bound(seed: int) -> None:
    """In 1 to 3 dimensions; the bound is off by the entropy of the component at most."""
    generator = np.random.default_rng(seed)
    size = seed % 3 + 1
    mixture, noise = random_mixture(generator, 3, size), random_noise(generator, size)
    true = mixture_information(mixture, noise=noise, draws=20_000, generator=generator)
    bound = information_bound(mixture, noise=noise)
    label = -float((mixture.weights * np.log(mixture.weights)).sum())
    assert true.value - 4 * true.standard_error < bound
    assert bound - label < true.value + 4 * true.standard_error


def test_components_far_apart_meet_the_bound() -> None:
    mixture = Mixture(np.array([0.25, 0.75]), np.array([[0.0], [100.0]]), np.array([[[1.0]], [[2.0]]]))
    true = mixture_information(mixture, noise=[[0.5]], draws=40_000, generator=np.random.default_rng(0))
    assert information_bound(mixture, noise=[[0.5]]) == pytest.approx(true.value, abs=4 * true.standard_error)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_least_error_of_the_attacker_is_above_the_floor_of_the_bound(size: int) -> None:
    generator = np.random.default_rng(size)
    mixture, noise = random_mixture(generator, 2, size), random_noise(generator, size)
    entropy = -float(mixture.log_density(mixture.draw(20_000, generator=generator)).mean())
    floor = entropy_floor(entropy - information_bound(mixture, noise=noise), dimensions=size)
    error = mixture_error(mixture, observe=np.eye(size), noise=noise, draws=10_000, generator=generator)
    assert floor < error.value - 4 * error.standard_error


def log_normal_ratios(generator: np.random.Generator, draws: int, size: int) -> np.ndarray:
    return np.exp(0.6 * generator.standard_normal((draws, size)))


def test_teleported_information_is_below_its_bound_for_one_who_knows_the_ratios() -> None:
    """I(u; g | R) by Monte Carlo over R and g, and so I(u; g) of one who does not, which is less."""
    generator = np.random.default_rng(7)
    mixture, noise = random_mixture(generator, 2, 2), random_noise(generator, 2)
    ratios = log_normal_ratios(generator, 300, 2)
    bound = teleported_information_bound(mixture, noise=noise, ratios=ratios)
    known = []
    for r in ratios:
        moved = Mixture(mixture.weights, mixture.means * r, mixture.covariances * r[:, None] * r)
        known.append(mixture_information(moved, noise=noise, draws=400, generator=generator).value)
    assert np.mean(known) < bound.value
    assert np.mean(known) > bound.value + float((mixture.weights * np.log(mixture.weights)).sum()) - 0.1


def test_one_who_does_not_know_the_ratio_learns_less_than_the_bound_says() -> None:
    """One number: p(g|u) and p(g) are mixtures over the ratios, which makes I(u; g) a Monte Carlo of known terms."""
    generator = np.random.default_rng(2)
    ratios = np.exp(0.8 * generator.standard_normal((400, 1)))
    one = Mixture(np.ones(1), np.zeros((1, 1)), np.array([[[4.0]]]))
    bound = teleported_information_bound(one, noise=[[0.5]], ratios=ratios)
    u = one.draw(3000, generator=generator)[:, 0]
    g = ratios[generator.integers(400, size=3000), 0] * u + np.sqrt(0.5) * generator.standard_normal(3000)

    def log_normal(x: np.ndarray, variance: np.ndarray) -> np.ndarray:
        return -0.5 * x**2 / variance - 0.5 * np.log(2 * np.pi * variance)

    given = np.logaddexp.reduce(log_normal(g[:, None] - ratios[:, 0] * u[:, None], np.array(0.5)), axis=1)
    marginal = np.logaddexp.reduce(log_normal(g[:, None], 4.0 * ratios[:, 0] ** 2 + 0.5), axis=1)
    told = given - marginal
    assert told.mean() + 4 * told.std() / np.sqrt(3000) < bound.value


def test_equal_ratios_of_one_are_the_channel_without_teleportation() -> None:
    generator = np.random.default_rng(1)
    mixture, noise = random_mixture(generator, 3, 3), random_noise(generator, 3)
    found = teleported_information_bound(mixture, noise=noise, ratios=np.ones((2, 3)))
    assert found.value == pytest.approx(information_bound(mixture, noise=noise), rel=1e-12)
    assert found.standard_error == pytest.approx(0.0, abs=1e-12)


def test_each_draw_is_the_determinant_of_the_moved_covariance() -> None:
    generator = np.random.default_rng(3)
    mixture, noise = random_mixture(generator, 2, 3), random_noise(generator, 3)
    ratios = log_normal_ratios(generator, 40, 3)
    total = 0.0
    for r in ratios:
        for weight, cov in zip(mixture.weights, mixture.covariances, strict=True):
            moved = np.diag(r) @ cov @ np.diag(r)
            log = np.log(np.linalg.det(moved + noise) / np.linalg.det(noise))
            total += weight * (-np.log(weight) + 0.5 * log) / len(ratios)
    found = teleported_information_bound(mixture, noise=noise, ratios=ratios)
    assert found.value == pytest.approx(total, rel=1e-10)
    assert found.draws == 40


def test_noise_that_is_rescaled_with_the_gradient_leaves_the_bound_as_it_was() -> None:
    generator = np.random.default_rng(4)
    mixture, noise = random_mixture(generator, 2, 3), random_noise(generator, 3)
    r = log_normal_ratios(generator, 1, 3)[0]
    moved = Mixture(mixture.weights, mixture.means * r, mixture.covariances * r[:, None] * r)
    found = information_bound(moved, noise=noise * r[:, None] * r)
    assert found == pytest.approx(information_bound(mixture, noise=noise), rel=1e-10)


def test_the_full_form_is_the_diagonal_one_on_diagonals_and_below_it_elsewhere() -> None:
    generator = np.random.default_rng(5)
    mixture, gamma = random_mixture(generator, 3, 4), generator.uniform(0.2, 2.0, size=4)
    diagonals = np.stack([np.diag(c) for c in mixture.covariances])
    flat = Mixture(mixture.weights, mixture.means, np.stack([np.diag(d) for d in diagonals]))
    found = diagonal_information_bound(mixture.weights, diagonals / gamma)
    assert information_bound(flat, noise=np.diag(gamma)) == pytest.approx(found, rel=1e-12)
    assert information_bound(mixture, noise=np.diag(gamma)) < found - 0.1


def test_bad_input_is_named() -> None:
    one = Mixture(np.ones(1), np.zeros((1, 2)), np.eye(2)[None])
    with pytest.raises(InputError, match="the noise covariance is not positive definite"):
        information_bound(one, noise=np.diag([1.0, 0.0]))
    with pytest.raises(InputError, match="the noise covariance has shape"):
        information_bound(one, noise=np.eye(3))
    for ratios in (np.ones((4, 3)), np.ones(2), np.full((4, 2), np.nan)):
        with pytest.raises(InputError, match="give finite rows of 2, one a draw"):
            teleported_information_bound(one, noise=np.eye(2), ratios=ratios)
