"""Under the null, one calibrated p-value of each replicate is uniform.

A replicate draws its background, its calibration examples and one candidate anew, all from one law.
"""

from copy import deepcopy

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import chisquare, kstest
from torch import nn

from warp_unlearning.attacks.membership.background import fit_backgrounds, parts_of
from warp_unlearning.attacks.membership.gradient_difference import gradient_difference
from warp_unlearning.models.fresh import reinitialise
from warp_unlearning.models.networks import MLP
from warp_unlearning.stats.exchange import conformal_p

LEVEL = 1e-3


class Held:
    """Rows in memory."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, begin: int, end: int) -> torch.Tensor:
        return self.rows[begin:end]


def rows(count: int, rng: np.random.Generator, mixing: NDArray[np.float64]) -> torch.Tensor:
    """Heavy-tailed, of a scale that varies from row to row, mostly of low rank, with dead coordinates: like Δ."""
    scale = rng.lognormal(sigma=1.0, size=(count, 1))
    found = scale * (rng.standard_t(3, size=(count, 5)) @ mixing + 0.1 * rng.normal(size=(count, mixing.shape[1])))
    found[:, ::7] = 0.0
    return torch.from_numpy(found)


def uniform_on_grid(p_values: list[float], steps: int) -> float:
    """The p-value of their being 1/steps, ..., 1 equally often."""
    counts = np.bincount(np.rint(np.multiply(p_values, steps)).astype(int), minlength=steps + 1)
    assert counts[0] == 0
    return float(chisquare(counts[1:]).pvalue)


def test_on_simulated_differences() -> None:
    rng = np.random.default_rng(20)
    mixing = rng.normal(size=(5, 60))
    generator = torch.Generator().manual_seed(20)
    p, against_background = [], []
    for replicate in range(1500):
        background = Held(rows(16, rng, mixing))
        parts = parts_of(16, repetitions=1 + replicate % 2, generator=generator)
        relative = replicate % 3 == 0
        fits = fit_backgrounds(background, parts, keep=0.3, ridge=1e-3, relative=relative, batch_size=10)
        fresh, seen = (
            np.mean([fit.distance(some).numpy() for fit in fits], axis=0)
            for some in (rows(20, rng, mixing), background.rows)
        )
        p.append(conformal_p(fresh[:1], fresh[1:])[0])
        against_background.append(conformal_p(fresh[:1], seen)[0])
    assert uniform_on_grid(p, 20) > LEVEL
    # Calibrated on the background itself, a candidate always looks strange: the check would notice.
    assert uniform_on_grid(against_background, 17) < 1e-20


def test_on_a_network() -> None:
    original: nn.Module = MLP(inputs=6, classes=3, hidden=(8,))
    reinitialise(original, generator=torch.Generator().manual_seed(20))
    unlearned = deepcopy(original.eval())
    with torch.no_grad():
        for p in unlearned.parameters():
            p *= 1.3
    draws = torch.Generator().manual_seed(21)
    found, by_chi2 = [], []
    for _ in range(250):
        x, y = torch.randn(45, 6, generator=draws), torch.randint(0, 3, (45,), generator=draws)
        scores = gradient_difference(
            original,
            unlearned,
            candidates=(x[:1], y[:1]),
            background=(x[1:26], y[1:26]),
            calibration=(x[26:], y[26:]),
            relative_ridge=True,
        )
        assert scores.calibrated_p is not None
        found.append(scores.calibrated_p[0])
        by_chi2.append(np.exp(-scores.evidence[0]))
    assert uniform_on_grid(found, 20) > LEVEL
    # The p-value of the Gaussian model is not.
    assert kstest(by_chi2, "uniform").pvalue < 1e-6
