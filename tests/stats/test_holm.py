from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warp_unlearning.errors import InputError
from warp_unlearning.stats.holm import holm

some = st.lists(st.floats(0, 1), min_size=1, max_size=8)


def rejected(p_values: list[float], alpha: float) -> set[int]:
    """Step down by definition: stop at the first that is not below α over the number still standing."""
    out: set[int] = set()
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if p_values[index] * (len(p_values) - rank) > alpha:
            break
        out.add(index)
    return out


@given(some, st.floats(0.001, 0.999))
def test_corrected_values_reject_what_stepping_down_rejects(p_values: list[float], alpha: float) -> None:
    assert {i for i, p in enumerate(holm(p_values)) if p <= alpha} == rejected(p_values, alpha)


def test_true_hypotheses_survive_together() -> None:
    draw = np.random.default_rng(20)
    false_alarms = [bool((holm(draw.random(6)) <= 0.1).any()) for _ in range(2000)]
    assert np.mean(false_alarms) == pytest.approx(1 - (1 - 0.1 / 6) ** 6, abs=0.02)


@pytest.mark.parametrize("p_values", [[], [0.5, 1.2], [-0.1], [float("nan")]])
def test_what_is_no_p_value_is_refused(p_values: list[float]) -> None:
    with pytest.raises(InputError, match="p-values"):
        holm(p_values)
