"""The paired rise of 1 − AUC against a bootstrap."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from warp_unlearning.attacks.membership.audit import Audit, Observations
from warp_unlearning.errors import InputError
from warp_unlearning.stats.roc import area

SHADOWS, POINTS = 10, 120


def audit_of(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> Audit:
    def observed(mask: NDArray[np.bool_]) -> Observations:
        rows, columns = np.nonzero(mask)
        return Observations(scores[mask], columns.astype(np.int32), rows.astype(np.int32))

    return Audit(observed(positive), observed(~positive), np.arange(len(scores)), scores.shape[1], 1.0, "pooled")


def drawn(seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Scores without and with a defence of the same cells, which owe most of their noise to the same points."""
    draw = np.random.default_rng(seed)
    positive = draw.random((SHADOWS, POINTS)) < 0.5
    noise = draw.normal(size=(SHADOWS, POINTS)) + draw.normal(size=(1, POINTS))
    own = 0.5 * draw.normal(size=(2, SHADOWS, POINTS))
    return noise + 1.5 * positive + own[0], noise + 0.7 * positive + own[1], positive


def gain(base: float, other: float) -> float:
    return (1 - max(other, 1 - other)) / (1 - max(base, 1 - base)) - 1


@pytest.mark.parametrize("turned", [False, True])
def test_it_is_the_share_and_a_bootstrap_over_points_gives_its_interval(turned: bool) -> None:
    base, other, positive = drawn(20)
    other = -other if turned else other
    found = audit_of(base, positive).privacy_gain(audit_of(other, positive))
    areas = [area(scores[positive], scores[~positive]) for scores in (base, other)]
    assert found is not None
    assert found.value == pytest.approx(gain(*areas))
    assert found.value > 0
    draw, boot = np.random.default_rng(21), []
    for _ in range(400):
        pick = draw.integers(POINTS, size=POINTS)
        mask = positive[:, pick]
        boot.append(gain(*(area(s[:, pick][mask], s[:, pick][~mask]) for s in (base, other))))
    low, high = np.quantile(boot, [0.025, 0.975])
    assert (found.high - found.low) == pytest.approx(high - low, rel=0.2)
    assert found.low == pytest.approx(low, abs=0.25 * (high - low))
    assert found.high == pytest.approx(high, abs=0.25 * (high - low))


def test_back_and_forth_are_each_others_inverse() -> None:
    base, other, positive = drawn(22)
    first, second = audit_of(base, positive), audit_of(other, positive)
    there, back = first.privacy_gain(second), second.privacy_gain(first)
    assert there is not None
    assert back is not None
    assert (1 + there.value) * (1 + back.value) == pytest.approx(1)
    assert (1 + there.low) * (1 + back.high) == pytest.approx(1, rel=1e-6)
    assert (1 + there.high) * (1 + back.low) == pytest.approx(1, rel=1e-6)


def test_audits_of_other_points_are_refused() -> None:
    base, other, positive = drawn(23)
    with pytest.raises(InputError, match="cannot be paired"):
        audit_of(base, positive).privacy_gain(audit_of(other[:, :50], positive[:, :50]))
