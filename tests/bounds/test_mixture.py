import numpy as np
import pytest
from scipy.stats import multivariate_normal

from warp_unlearning.bounds.mixture import Mixture
from warp_unlearning.errors import InputError


def example() -> Mixture:
    covariances = np.array([[[1.0, 0.3], [0.3, 0.5]], [[0.4, -0.2], [-0.2, 2.0]]])
    return Mixture(np.array([0.3, 0.7]), np.array([[0.0, 1.0], [3.0, -1.0]]), covariances)


def test_the_density_is_the_sum_of_scipys() -> None:
    mixture, points = example(), np.random.default_rng(0).normal(size=(20, 2))
    parts = [
        w * multivariate_normal(m, c).pdf(points)
        for w, m, c in zip(mixture.weights, mixture.means, mixture.covariances, strict=True)
    ]
    assert np.exp(mixture.log_density(points)) == pytest.approx(sum(parts), rel=1e-12)
    assert np.exp(mixture.log_terms(points)) == pytest.approx(np.stack(parts, axis=1), rel=1e-12)


def test_draws_have_the_moments_of_the_mixture() -> None:
    mixture = example()
    points = mixture.draw(200_000, generator=np.random.default_rng(1))
    mean = mixture.weights @ mixture.means
    away = mixture.means - mean
    spread = np.einsum("i,ijk->jk", mixture.weights, mixture.covariances + away[:, :, None] * away[:, None])
    assert points.mean(0) == pytest.approx(mean, abs=0.02)
    assert np.cov(points.T) == pytest.approx(spread, abs=0.04)


def test_draws_have_the_covariance_of_a_component() -> None:
    cov = np.array([[2.0, 0.8, -0.5], [0.8, 1.0, 0.1], [-0.5, 0.1, 0.7]])
    points = Mixture(np.ones(1), np.zeros((1, 3)), cov[None]).draw(100_000, generator=np.random.default_rng(2))
    assert np.cov(points.T) == pytest.approx(cov, abs=0.04)


def test_a_noisy_linear_map_maps_each_component() -> None:
    mixture, matrix = example(), np.array([[1.0, 2.0], [0.0, -1.0], [0.5, 0.5]])
    noise = np.diag([0.1, 0.2, 0.3])
    seen = mixture.through(matrix, noise)
    assert seen.dimensions == 3
    assert seen.means[1] == pytest.approx(matrix @ mixture.means[1])
    assert seen.covariances[0] == pytest.approx(matrix @ mixture.covariances[0] @ matrix.T + noise)
    with pytest.raises(InputError, match="it needs 2 columns"):
        mixture.through(np.eye(3), np.eye(3))


def test_singular_components_can_be_drawn_from() -> None:
    flat = Mixture(np.ones(1), np.zeros((1, 2)), np.array([[[1.0, 1.0], [1.0, 1.0]]]))
    points = flat.draw(50, generator=np.random.default_rng(0))
    assert points[:, 0] == pytest.approx(points[:, 1], abs=1e-7)
    assert points.std() > 0.5


@pytest.mark.parametrize(
    ("weights", "means", "covariances", "message"),
    [
        ([0.5, 0.6], np.zeros((2, 1)), np.ones((2, 1, 1)), "add up to 1"),
        ([1.0, 0.0], np.zeros((2, 1)), np.ones((2, 1, 1)), "above 0"),
        ([1.0], np.zeros((2, 1)), np.ones((1, 1, 1)), "the means have shape"),
        ([1.0], np.full((1, 1), np.nan), np.ones((1, 1, 1)), "finite numbers"),
        ([1.0], np.zeros((1, 2)), np.ones((1, 1, 1)), r"give \(1, 2, 2\)"),
        ([0.5, 0.5], np.zeros((2, 1)), -np.ones((2, 1, 1)), "the covariance of component 0 has the eigenvalue -1"),
    ],
)
def test_what_is_no_mixture_is_named(
    weights: list[float], means: np.ndarray, covariances: np.ndarray, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        Mixture(np.array(weights), means, covariances)
