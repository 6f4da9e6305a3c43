"""The least mean squared error of any reconstruction, ξ = (1/d) E tr Cov(x|g), for channels where it can be computed.

The observation is g = A x + ε, ε ~ N(0, N). For Gaussian x everything has a closed form; for a mixture the expectation
over g is a mean over draws, while the posterior at each g is exact.
"""

from __future__ import annotations

from math import e, pi

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InputError
from .covariance import Array, covariance, root_of
from .mixture import Mixture
from .monte_carlo import MonteCarlo, mean_of


def posterior_covariance(prior: ArrayLike, *, observe: ArrayLike, noise: ArrayLike) -> Array:
    """Cov(x|g) = P − P Aᵀ (A P Aᵀ + N)⁻¹ A P for x ~ N(·, P), shape (d, d); it does not depend on g."""
    return _gain(*_channel(prior, observe, noise))[1]


def gaussian_error(prior: ArrayLike, *, observe: ArrayLike, noise: ArrayLike) -> float:
    """(1/d) tr Cov(x|g) for Gaussian x."""
    left = posterior_covariance(prior, observe=observe, noise=noise)
    return float(np.trace(left)) / len(left)


def gaussian_entropy(prior: ArrayLike, *, observe: ArrayLike, noise: ArrayLike) -> float:
    """H(x|g) = ½ log((2πe)^d |Cov(x|g)|) in nats for Gaussian x."""
    left = posterior_covariance(prior, observe=observe, noise=noise)
    root = root_of(left, what="the covariance of x given g")
    return float(0.5 * len(left) * np.log(2 * pi * e) + np.log(np.diag(root)).sum())


def mixture_error(
    prior: Mixture, *, observe: ArrayLike, noise: ArrayLike, draws: int, generator: np.random.Generator
) -> MonteCarlo:
    """(1/d) E tr Cov(x|g) for x from a mixture, the mean over `draws` observations g.

    Given g, component i has the weight ρᵢ ∝ πᵢ N(g; Aμᵢ, AΣᵢAᵀ + N), the mean mᵢ = μᵢ + Kᵢ(g − Aμᵢ) and a covariance
    Cᵢ of its own; tr Cov(x|g) = Σ ρᵢ (tr Cᵢ + ‖mᵢ − E[x|g]‖²).
    """
    linear = np.asarray(observe, dtype=np.float64)
    seen = prior.through(linear, noise)
    g = seen.draw(draws, generator=generator)
    terms = seen.log_terms(g)
    share = np.exp(terms - seen.log_density(g)[:, None])
    means = np.empty((len(prior.weights), draws, prior.dimensions))
    traces = np.empty(len(prior.weights))
    for i, (mean, cov) in enumerate(zip(prior.means, prior.covariances, strict=True)):
        gain, left = _gain(*_channel(cov, linear, noise))
        means[i] = mean + (g - linear @ mean) @ gain.T
        traces[i] = np.trace(left)
    centre = np.einsum("ni,ind->nd", share, means)
    apart = np.square(means - centre).sum(2).T
    return mean_of((share * (traces + apart)).sum(1) / prior.dimensions)


def mixture_information(signal: Mixture, *, noise: ArrayLike, draws: int, generator: np.random.Generator) -> MonteCarlo:
    """I(u; g) = E[log p(g|u) − log p(g)] in nats for g = u + ε, ε ~ N(0, noise), the mean over `draws` pairs.

    Where u = G(x) and g depends on x through u alone, this is I(x; g), and H(x|g) = H(x) − I(u; g).
    """
    size = signal.dimensions
    added = Mixture(np.ones(1), np.zeros((1, size)), covariance(noise, size=size, what="the noise covariance")[None])
    u, error = signal.draw(draws, generator=generator), added.draw(draws, generator=generator)
    return mean_of(added.log_density(error) - signal.through(np.eye(size), noise).log_density(u + error))


def _channel(prior: ArrayLike, observe: ArrayLike, noise: ArrayLike) -> tuple[Array, Array, Array]:
    linear = np.asarray(observe, dtype=np.float64)
    if linear.ndim != 2:
        raise InputError(f"the map has shape {linear.shape}; give a matrix")
    rows, columns = linear.shape
    known = covariance(prior, size=columns, what="the prior covariance")
    return known, linear, covariance(noise, size=rows, what="the noise covariance")


def _gain(prior: Array, linear: Array, noise: Array) -> tuple[Array, Array]:
    """K = P Aᵀ (A P Aᵀ + N)⁻¹ and the covariance that is left."""
    seen = linear @ prior @ linear.T + noise
    root_of(seen, what="the covariance of the observation")
    gain = np.asarray(np.linalg.solve(seen, linear @ prior).T, dtype=np.float64)
    left = prior - gain @ linear @ prior
    return gain, (left + left.T) / 2
