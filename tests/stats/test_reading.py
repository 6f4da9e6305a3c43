from __future__ import annotations

import pytest

from warp_unlearning.errors import InputError
from warp_unlearning.stats.intervals import Estimate
from warp_unlearning.stats.reading import read_area


@pytest.mark.parametrize(
    ("area", "verdict", "direction", "strength"),
    [
        (Estimate(0.6, 0.51, 0.7), "leak", "positives higher", 0.6),
        (Estimate(0.1, 0.05, 0.2), "leak", "positives lower", 0.9),
        (Estimate(0.505, 0.49, 0.519), "no leak found", "positives higher", 0.505),
        (Estimate(0.5, 0.481, 0.519), "no leak found", "none", 0.5),
        (Estimate(0.519, 0.4995, 0.5385), "inconclusive", "positives higher", 0.519),
        (Estimate(0.52, 0.47, 0.57), "inconclusive", "positives higher", 0.52),
        (Estimate(0.5, 0.0, 1.0), "inconclusive", "none", 0.5),
    ],
)
def test_both_directions_leak_and_wide_intervals_decide_nothing(
    area: Estimate, verdict: str, direction: str, strength: float
) -> None:
    found = read_area(area)
    assert (found.verdict, found.direction) == (verdict, direction)
    assert found.strength == pytest.approx(strength)
    assert str(found).startswith(f"{verdict}: AUC {area}")


def test_the_margin_decides_what_is_narrow() -> None:
    assert read_area(Estimate(0.5, 0.47, 0.53), margin=0.0301).verdict == "no leak found"
    assert read_area(Estimate(0.5, 0.47, 0.53), margin=0.029).verdict == "inconclusive"


@pytest.mark.parametrize("margin", [0, -0.1, float("nan"), 0.5, 5.0])
def test_a_margin_that_no_interval_or_any_would_meet_is_refused(margin: float) -> None:
    with pytest.raises(InputError, match=f"margin is {margin}"):
        read_area(Estimate(0.5, 0.4, 0.6), margin=margin)
