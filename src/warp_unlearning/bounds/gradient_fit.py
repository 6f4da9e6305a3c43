"""The diagonal model of a network's gradients: a mixture of Gaussians, and the noise that a retain batch adds.

Clean gradients are a mixture with diagonal covariances, fitted by scikit-learn to the gradients of single examples. The
noise of coordinate j is what the mean gradient of a retain batch of B examples varies by, γⱼ² = Var(gⱼ)/B, and at least
1e-12 of its mean over coordinates: about what float32 rounds away. With one component and the same examples on both
sides every signal-to-noise ratio is B; more components leave less variance within each.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from ..errors import DataError, InputError
from .covariance import Array

NOISE_FLOOR = 1e-12


@dataclass(frozen=True, eq=False)
class GradientFit:
    """Weights (K,) and signal-to-noise ratios αᵢⱼ (K, m); `silent` coordinates never changed, and have ratio 0."""

    weights: Array
    snr: Array
    silent: int
    notes: tuple[str, ...]


def fit_gradients(rows: Array, retained: Array, *, components: int, batch: int, seed: int) -> GradientFit:
    """The model of the gradients `rows`, (n, m), in the noise of batches from `retained`, (n′, m)."""
    require_enough(len(rows), len(retained), components=components, batch=batch)
    variance, noise = rows.var(0), retained.var(0) / batch
    level = NOISE_FLOOR * float(noise.mean())
    if level == 0:
        raise DataError("no gradient of the retained examples differs from another; there is no noise to compare with")
    live = variance > level
    if not live.any():
        raise DataError("no gradient differs from another at the chosen coordinates; choose other parameters")
    standard = (rows[:, live] - rows[:, live].mean(0)) / np.sqrt(variance[live])
    weights, within, notes = _mixture(standard, components, seed)
    snr = np.zeros((len(weights), rows.shape[1]))
    snr[:, live] = within * variance[live] / np.maximum(noise[live], level)
    return GradientFit(weights, snr, int((~live).sum()), notes)


def require_enough(rows: int, retained: int, *, components: int, batch: int) -> None:
    """Refuse what so many examples cannot be fitted with, before any gradient is taken."""
    for what, value in (("components", components), ("batch", batch)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{what} is {value!r}; give a whole number of at least 1")
    if rows < max(2, 2 * components) or retained < 2:
        raise DataError(
            f"there are {rows} examples for {components} components and {retained} for the noise; give at "
            "least 2 for each component and 2 for the noise, or ask for fewer components"
        )


def _mixture(standard: Array, components: int, seed: int) -> tuple[Array, Array, tuple[str, ...]]:
    """Weights (K,) and variances (K, m) of a fit to standardised rows."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    # Rows are in units of their own deviation, so that scikit-learn's 1e-6 on every variance is small.
    model = GaussianMixture(components, covariance_type="diag", random_state=seed % 2**32)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(standard)
    notes = tuple(dict.fromkeys(_in_words(str(w.message)) for w in caught if w.category is ConvergenceWarning))
    kept = model.weights_ > 0
    return model.weights_[kept] / model.weights_[kept].sum(), model.covariances_[kept], notes


def _in_words(message: str) -> str:
    return "the fit of the mixture did not settle: " + " ".join(message.split()).split(". ")[0].rstrip(".")
