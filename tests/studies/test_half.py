from __future__ import annotations

import struct
from math import isfinite, isnan, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warp_unlearning.attacks.membership.shadow_audit import shadow_audit
from warp_unlearning.attacks.membership.shadow_design import shadow_design
from warp_unlearning.studies.half import as_half


def nearest_half(value: float) -> float:
    """The number that `struct` makes of two bytes, which knows no overflow but by an error."""
    try:
        return float(struct.unpack("e", struct.pack("e", value))[0])
    except OverflowError:
        return 65504.0 if value > 0 else -65504.0


@given(values=st.lists(st.floats(-1e6, 1e6) | st.floats(allow_nan=False), max_size=20))
def test_rounds_to_the_nearest_and_clips_what_is_finite(values: list[float]) -> None:
    found = as_half(values)
    assert found.dtype == np.float16
    assert found.tolist() == [nearest_half(value) for value in values]
    for value, rounded in zip(values, found.tolist(), strict=True):
        assert isfinite(value) == isfinite(rounded)
        if abs(value) <= 65504:
            assert abs(rounded - value) <= max(2**-11 * abs(value), 2**-25)


def test_what_is_no_number_stays_so() -> None:
    assert isnan(as_half([nan])[0])
    assert as_half([np.inf, -np.inf]).tolist() == [np.inf, -np.inf]


@pytest.mark.parametrize("seed", range(3))
def test_an_audit_of_rounded_scores_finds_the_same(seed: int) -> None:
    """Twenty-four shadows and 400 points, confidences N(8, 3²) over points and N(·, 1) over shadows: rounding moves the
    area by less than 2e-4 and rates by less than 3e-3, where sampling moves them by 0.01.
    """
    draw = np.random.default_rng(seed)
    trained = shadow_design(400, shadows=24, forget_sets=1, generator=draw).trained
    scores = draw.normal(8, 3, 400) + draw.normal(size=trained.shape) + 0.7 * trained
    exact, rounded = (
        shadow_audit(values.astype(np.float64), forgotten=trained, never=~trained)
        for values in (scores.astype(np.float32), as_half(scores))
    )
    assert 0.62 < exact.auc < 0.7
    assert rounded.auc == pytest.approx(exact.auc, abs=2e-4)
    for fpr in (0.01, 0.1):
        assert rounded.tpr(fpr) == pytest.approx(exact.tpr(fpr), abs=3e-3)
