"""Are p-values as often large as small?"""

import numpy as np
from scipy.stats import chisquare


def uniform_on_grid(p_values: list[float], steps: int) -> float:
    """The p-value of their being 1/steps, ..., 1 equally often."""
    counts = np.bincount(np.rint(np.multiply(p_values, steps)).astype(int), minlength=steps + 1)
    assert counts[0] == 0
    return float(chisquare(counts[1:]).pvalue)
