from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from warp_unlearning.stats.intervals import proportion
from warp_unlearning.stats.rate import Rate, independent_rate


def test_an_unresolved_rate_is_no_number() -> None:
    found = independent_rate(np.arange(50.0), np.arange(999.0), 0.01)
    assert not found.resolved
    assert str(found) == "TPR at 1 % FPR: unresolved (999 negatives, 1,000 needed)"
    assert found.summary() == {"fpr": 0.01, "resolved": False, "negatives": 999, "tpr": None}
    assert "infinitely many" in str(Rate(0.0, None, 5))


def test_a_resolved_rate_reaches_at_least_as_far_as_the_exact_interval() -> None:
    found = independent_rate(np.arange(50.0) * 30, np.arange(1000.0), 0.01, level=0.9)
    exact = proportion(17, 50, level=0.9)
    assert found.tpr is not None
    assert (found.tpr.value, found.resolved, found.needed) == (0.34, True, 1000)
    assert found.tpr.low <= exact.low < exact.high <= found.tpr.high
    assert str(found) == f"TPR at 1 % FPR: {found.tpr}"


def test_no_and_all_positives_have_the_exact_interval() -> None:
    assert independent_rate(np.zeros(20), np.arange(1.0, 301.0), 0.05).tpr == proportion(0, 20)
    assert independent_rate(np.full(20, 1e6), np.arange(300.0), 0.05).tpr == proportion(20, 20)


@pytest.mark.parametrize(("positives", "negatives"), [(126, 226), (1000, 200)])
def test_an_upper_end_is_seldom_below_the_truth(positives: int, negatives: int) -> None:
    draw, truth = np.random.default_rng(20), norm.sf(norm.isf(0.05) - 1.5)
    found = [
        independent_rate(draw.normal(1.5, 1, positives), draw.normal(0, 1, negatives), 0.05).tpr for _ in range(400)
    ]
    assert np.mean([e.high < truth for e in found if e is not None]) < 0.05
    assert np.mean([e.low <= truth <= e.high for e in found if e is not None]) > 0.9
