from __future__ import annotations

from typing import Any

import pytest
from scipy import stats

from warp_unlearning.errors import InputError
from warp_unlearning.stats.planning import plan

USUAL: dict[str, Any] = {
    "fpr": 0.01,
    "half_width": 0.02,
    "points": 300,
    "forget_sets": 4,
    "training_seconds": 60.0,
    "unlearning_seconds": 15.0,
}


def test_the_width_is_met_and_two_shadows_fewer_would_not_do() -> None:
    found = plan(**USUAL)
    siblings = 0.5 + 0.5 / 4

    def width(shadows: int) -> float:
        cells = 300 * shadows / 2
        return float(stats.t.isf(0.025, 299) * (2 * (1 + siblings) / cells / 12) ** 0.5)

    assert found.half_width == pytest.approx(width(found.shadows))
    assert width(found.shadows) <= 0.02 < width(found.shadows - 2)
    assert found.limit == "width"
    assert found.models == 4 * found.shadows
    assert found.negatives == 300 * found.shadows // 2 * 4
    assert found.positives == 300 * found.shadows // 2
    assert found.hours == pytest.approx(found.shadows * (60 + 4 * 15) / 3600)
    assert str(found).startswith(f"{found.shadows} shadows")


def test_a_small_rate_asks_for_negatives() -> None:
    found = plan(**USUAL | {"fpr": 1e-5})
    assert (found.limit, found.negatives_needed) == ("resolution", 1_000_000)
    assert found.negatives >= 1_000_000 > found.negatives - 2 * 600


def test_points_do_not_make_up_for_shadows() -> None:
    many = USUAL | {"points": 10_000}
    assert (plan(**many).limit, plan(**many).shadows) == ("fits", 16)
    assert plan(**many, least=31).shadows == 32
    assert plan(**many, least=4).shadows == 4


def test_more_jobs_points_and_siblings_cost_less_and_moving_shadows_more() -> None:
    base = plan(**USUAL)
    assert plan(**USUAL, jobs=4).hours == pytest.approx(base.hours / 4)
    assert plan(**USUAL | {"points": 600}).shadows < base.shadows
    assert plan(**USUAL, sibling_correlation=0.0).shadows < base.shadows < plan(**USUAL, share=0.4).shadows
    assert plan(**USUAL, shadow_spread=0.05).shadows > base.shadows
    assert plan(**USUAL, level=0.99).shadows > base.shadows
    assert plan(**USUAL, tpr=0.2).half_width != base.half_width


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fpr": 0.0}, r"fpr=0\.0"),
        ({"half_width": 0.0}, r"half_width=0\.0"),
        ({"points": 0}, "points=0"),
        ({"tpr": 1.0}, r"tpr=1\.0"),
        ({"share": 0.0}, r"share=0\.0"),
        ({"training_seconds": -1.0}, "finite numbers from 0 on"),
        ({"unlearning_seconds": float("nan")}, "finite numbers from 0 on"),
        ({"fpr": 1e-12}, "ask for a larger rate"),
        ({"half_width": 1e-9}, "out of reach"),
        ({"least": 2}, "least=2"),
        ({"level": 2.0}, "level is 2"),
    ],
)
def test_what_cannot_be_planned_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan(**USUAL | change)
