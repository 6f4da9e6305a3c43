from __future__ import annotations

import numpy as np

from warp_unlearning.stats.intervals import proportion
from warp_unlearning.stats.rate import Rate, independent_rate
from warp_unlearning.stats.roc import roc


def test_an_unresolved_rate_is_no_number() -> None:
    found = independent_rate(roc(np.arange(50.0), np.arange(999.0)), 0.01)
    assert not found.resolved
    assert str(found) == "TPR at 1 % FPR: unresolved (999 negatives, 1,000 needed)"
    assert found.summary() == {"fpr": 0.01, "resolved": False, "negatives": 999, "tpr": None}
    assert "infinitely many" in str(Rate(0.0, None, 5))


def test_a_resolved_rate_has_its_exact_interval() -> None:
    found = independent_rate(roc(np.arange(50.0) * 30, np.arange(1000.0)), 0.01, level=0.9)
    assert found.tpr == proportion(17, 50, level=0.9)
    assert str(found) == f"TPR at 1 % FPR: {found.tpr}"
    assert found.summary()["tpr"]["value"] == 0.34
    assert (found.resolved, found.needed) == (True, 1000)
