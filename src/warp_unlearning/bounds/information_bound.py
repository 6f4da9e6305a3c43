"""How many nats a noisy gradient says about its input at most, where clean gradients are a mixture of Gaussians.

With u = G(x) ~ Σ πᵢ N(μᵢ, Σᵢ) and g = R u + ε, ε ~ N(0, Σ_g), for a rescaling R = diag(r) that is drawn independently
of x,

    I(x; g) ≤ I(u; g | R) ≤ Σ πᵢ (−log πᵢ + ½ E log |R Σᵢ Rᵀ + Σ_g| / |Σ_g|),

so that H(x|g) ≥ H(x) less that. The first step lets the attacker know R; the second lets it know the component. R = I
is the channel without teleportation. The mixture's means do not enter.

The noise is added after the rescaling. Noise that is rescaled with the gradient, R(u + ε), leaves the bound exactly as
it is without any rescaling.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InputError
from .covariance import Array, covariance, log_det_ratio, root_of
from .mixture import Mixture
from .monte_carlo import MonteCarlo, mean_of


def information_bound(signal: Mixture, *, noise: ArrayLike) -> float:
    """Σ πᵢ (−log πᵢ + ½ log |Σᵢ + Σ_g| / |Σ_g|) in nats: the bound on I(x; g₀) without teleportation."""
    root = _noise_root(signal, noise)
    return float(label_entropy(signal.weights) + 0.5 * signal.weights @ log_det_ratio(signal.covariances, root))


def teleported_information_bound(signal: Mixture, *, noise: ArrayLike, ratios: ArrayLike) -> MonteCarlo:
    """The same with E log |R Σᵢ Rᵀ + Σ_g| / |Σ_g| as the mean over `ratios`, shape (draws, m), one R a row."""
    root = _noise_root(signal, noise)
    drawn = np.asarray(ratios, dtype=np.float64)
    if drawn.ndim != 2 or drawn.shape[1] != signal.dimensions or not np.isfinite(drawn).all():
        raise InputError(f"the ratios have shape {drawn.shape}; give finite rows of {signal.dimensions}, one a draw")
    logs = np.empty((len(drawn), len(signal.weights)))
    for k, r in enumerate(drawn):
        logs[k] = log_det_ratio(signal.covariances * r[:, None] * r, root)
    return mean_of(label_entropy(signal.weights) + 0.5 * logs @ signal.weights)


def label_entropy(weights: Array) -> float:
    """−Σ πᵢ log πᵢ in nats: what the component alone may say."""
    return float(-(weights * np.log(weights)).sum())


def _noise_root(signal: Mixture, noise: ArrayLike) -> Array:
    what = "the noise covariance"
    return root_of(covariance(noise, size=signal.dimensions, what=what), what=what)
