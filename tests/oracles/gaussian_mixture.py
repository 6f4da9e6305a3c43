"""A mixture of Gaussians with full covariances seen in Gaussian noise: its information, least error and their bound.

numpy and scipy alone, nothing of the package. Expectations without a closed form are means over draws, returned with
their standard error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Mixture:
    """Weights (K,), means (K, m) and covariances (K, m, m)."""

    weights: Array
    means: Array
    covariances: Array

    def log_density(self, points: Array) -> Array:
        return np.asarray(logsumexp(self.log_terms(points), axis=1))

    def log_terms(self, points: Array) -> Array:
        """Log πᵢ + log N(u; μᵢ, Σᵢ), shape (n, K)."""
        terms = [multivariate_normal(m, c).logpdf(points) for m, c in zip(self.means, self.covariances, strict=True)]
        return np.stack([np.reshape(term, -1) for term in terms], axis=1) + np.log(self.weights)

    def draw(self, count: int, generator: np.random.Generator) -> Array:
        which = generator.choice(len(self.weights), size=count, p=self.weights)
        roots = np.linalg.cholesky(self.covariances)[which]
        return self.means[which] + np.einsum("nij,nj->ni", roots, generator.standard_normal((count, len(roots[0]))))

    def rescaled(self, r: Array) -> Mixture:
        return Mixture(self.weights, self.means * r, self.covariances * r[:, None] * r)

    def noisy(self, noise: Array) -> Mixture:
        return Mixture(self.weights, self.means, self.covariances + noise)


def random_mixture(generator: np.random.Generator, components: int, size: int) -> Mixture:
    halves = generator.normal(size=(components, size, size))
    weights = generator.dirichlet(np.full(components, 3.0))
    means = 3 * generator.normal(size=(components, size))
    return Mixture(weights, means, halves @ halves.transpose(0, 2, 1) + 0.1 * np.eye(size))


def information_bound(signal: Mixture, noise: Array) -> float:
    """Σ πᵢ (−log πᵢ + ½ log |Σᵢ + N| / |N|), the bound with full covariances."""
    logs = np.log(np.linalg.det(signal.covariances + noise) / np.linalg.det(noise))
    return float(signal.weights @ (0.5 * logs - np.log(signal.weights)))


def information(signal: Mixture, noise: Array, draws: int, generator: np.random.Generator) -> tuple[float, float]:
    """I(u; g) = E[log p(g|u) − log p(g)] in nats for g = u + ε, ε ~ N(0, N)."""
    error = generator.multivariate_normal(np.zeros(len(noise)), noise, draws)
    given = np.reshape(multivariate_normal(np.zeros(len(noise)), noise).logpdf(error), -1)
    return _mean(given - signal.noisy(noise).log_density(signal.draw(draws, generator) + error))


def least_error(signal: Mixture, noise: Array, draws: int, generator: np.random.Generator) -> tuple[float, float]:
    """(1/m) E tr Cov(u|g), the posterior at each g in closed form."""
    seen = signal.noisy(noise)
    g = seen.draw(draws, generator)
    share = np.exp(seen.log_terms(g) - seen.log_density(g)[:, None])
    gains = signal.covariances @ np.linalg.inv(seen.covariances)
    means = signal.means + np.einsum("kij,nkj->nki", gains, g[:, None] - signal.means)
    left = np.trace(signal.covariances - gains @ signal.covariances, axis1=1, axis2=2)
    centre = np.einsum("nk,nki->ni", share, means)
    apart = np.square(means - centre[:, None]).sum(2)
    return _mean((share * (left + apart)).sum(1) / signal.means.shape[1])


def _mean(samples: Array) -> tuple[float, float]:
    return float(samples.mean()), float(samples.std(ddof=1) / np.sqrt(len(samples)))
