"""Mixtures of Gaussians, p(u) = Σᵢ πᵢ N(u; μᵢ, Σᵢ)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import solve_triangular
from scipy.special import logsumexp

from ..errors import InputError
from .covariance import Array, covariance, root_of


def mixture_weights(given: ArrayLike) -> Array:
    """Weights πᵢ > 0 that add up to 1, shape (K,), in float64; or an error."""
    weights = np.asarray(given, dtype=np.float64)
    if weights.ndim != 1 or not len(weights) or not (weights > 0).all() or abs(float(weights.sum()) - 1) > 1e-6:
        raise InputError(f"the mixture weights are {weights.tolist()}; they must be above 0 and add up to 1")
    return np.asarray(weights / weights.sum())


@dataclass(frozen=True, eq=False)
class Mixture:
    """K Gaussians in m dimensions: weights (K,), means (K, m), covariances (K, m, m), which may be singular."""

    weights: Array
    means: Array
    covariances: Array

    def __post_init__(self) -> None:
        weights = mixture_weights(self.weights)
        means = np.asarray(self.means, dtype=np.float64)
        if means.ndim != 2 or len(means) != len(weights) or not np.isfinite(means).all():
            raise InputError(f"the means have shape {means.shape}; give {len(weights)} rows of finite numbers")
        given, size = np.asarray(self.covariances, dtype=np.float64), means.shape[1]
        if given.shape != (len(weights), size, size):
            raise InputError(f"the covariances have shape {given.shape}; give ({len(weights)}, {size}, {size})")
        checked = [covariance(c, size=size, what=f"the covariance of component {i}") for i, c in enumerate(given)]
        for name, value in (("weights", weights), ("means", means), ("covariances", np.stack(checked))):
            object.__setattr__(self, name, value)

    @property
    def dimensions(self) -> int:
        """How many numbers a point has: m."""
        return int(self.means.shape[1])

    def through(self, matrix: ArrayLike, noise: ArrayLike) -> Mixture:
        """The mixture of g = A u + ε with ε ~ N(0, noise): components N(A μᵢ, A Σᵢ Aᵀ + noise)."""
        linear = np.asarray(matrix, dtype=np.float64)
        if linear.ndim != 2 or linear.shape[1] != self.dimensions:
            raise InputError(f"the map has shape {linear.shape}; it needs {self.dimensions} columns")
        added = covariance(noise, size=len(linear), what="the noise covariance")
        return Mixture(self.weights, self.means @ linear.T, linear @ self.covariances @ linear.T + added)

    def log_terms(self, points: Array) -> Array:
        """The log πᵢ + log N(u; μᵢ, Σᵢ) of points (n, m), shape (n, K)."""
        terms = np.empty((len(points), len(self.weights)))
        for i, (weight, mean, cov) in enumerate(zip(self.weights, self.means, self.covariances, strict=True)):
            root = root_of(cov, what=f"the covariance of component {i}")
            away = solve_triangular(root, (points - mean).T, lower=True)
            size = np.log(np.diag(root)).sum() + 0.5 * self.dimensions * np.log(2 * np.pi)
            terms[:, i] = np.log(weight) - size - 0.5 * np.square(away).sum(0)
        return terms

    def log_density(self, points: Array) -> Array:
        """The log p(u) of points (n, m), shape (n,)."""
        return np.asarray(logsumexp(self.log_terms(points), axis=1))

    def draw(self, count: int, *, generator: np.random.Generator) -> Array:
        """`count` independent points, shape (count, m)."""
        which = generator.choice(len(self.weights), size=count, p=self.weights)
        normal = generator.standard_normal((count, self.dimensions))
        points = self.means[which]
        for i, cov in enumerate(self.covariances):
            values, vectors = np.linalg.eigh(cov)
            points[which == i] += normal[which == i] * np.sqrt(values.clip(min=0.0)) @ vectors.T
        return points
