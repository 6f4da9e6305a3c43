from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from warp_unlearning.errors import InputError
from warp_unlearning.stats.comparison import advantage_reduction
from warp_unlearning.stats.paired_share import paired_reduction


@pytest.mark.parametrize("chance", [0.5, 1.0])
def test_the_interval_is_what_students_test_does_not_reject(chance: float) -> None:
    draw = np.random.default_rng(20)
    shared = draw.normal(size=8)
    base = 0.75 + 0.03 * shared + 0.01 * draw.normal(size=8)
    other = 0.62 + 0.02 * shared + 0.01 * draw.normal(size=8)
    found = paired_reduction(base, other, chance=chance)
    assert found is not None
    assert found.value == pytest.approx(advantage_reduction(base.mean(), other.mean(), chance=chance))

    def p_value(share: float) -> float:
        return float(ttest_1samp(other - chance - (1 - share) * (base - chance), 0.0).pvalue)

    assert p_value(found.low) == pytest.approx(0.05, rel=1e-6)
    assert p_value(found.high) == pytest.approx(0.05, rel=1e-6)
    assert found.low < found.value < found.high
    assert p_value((found.low + found.high) / 2) > 0.05


def test_it_covers_and_pairing_makes_it_narrow() -> None:
    draw, covered, widths = np.random.default_rng(21), 0, []
    for _ in range(400):
        shared = 0.03 * draw.normal(size=6)
        base, other = 0.7 + shared, 0.6 + 0.5 * shared + 0.003 * draw.normal(size=6)
        found = paired_reduction(base, other)
        if found is None:
            continue
        covered += found.low <= 0.5 <= found.high
        widths.append(found.high - found.low)
    assert len(widths) > 390
    assert 0.92 <= covered / len(widths) <= 0.98
    # Alone, each mean is known to about 0.03 · 2.57/√6, a sixth of the advantage.
    assert np.median(widths) < 0.1


def test_what_cannot_be_stated() -> None:
    assert paired_reduction([0.7], [0.6]) is None
    assert paired_reduction([0.5, 0.6, 0.4], [0.5, 0.5, 0.5]) is None
    with pytest.raises(InputError, match="every pair"):
        paired_reduction([0.7, 0.7], [0.6])
