from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from warp_unlearning.attacks.membership.shadow_design import shadow_design
from warp_unlearning.errors import InputError
from warp_unlearning.stats.planning import plan, roc_slope

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
        ({"points": 1000, "forget_sets": 100_000}, r"100000 forget sets from 1\.0 of the 500 points"),
        ({"points": 1000, "share": 0.1, "forget_sets": 51}, r"51 forget sets from 0\.1 of the 500 points"),
        ({"level": 2.0}, "level is 2"),
    ],
)
def test_what_cannot_be_planned_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan(**USUAL | change)


@pytest.mark.parametrize(("points", "share"), [(7, 1.0), (1000, 0.1), (11, 0.5), (2, 1.0)])
def test_as_many_forget_sets_are_planned_as_a_design_has_room_for(points: int, share: float) -> None:
    for forget_sets in range(1, 60):
        asked = {"points": points, "share": share, "forget_sets": forget_sets}
        try:
            shadow_design(shadows=2, generator=np.random.default_rng(20), **asked)  # type: ignore[arg-type]
        except InputError:
            with pytest.raises(InputError, match="disjoint"):
                plan(**USUAL | asked)
        else:
            assert plan(**USUAL | asked).shadows


@pytest.mark.parametrize(("tpr", "fpr"), [(0.2, 0.01), (0.9, 0.1), (0.05, 0.05), (0.02, 0.001), (0.1, 0.3)])
def test_the_slope_is_that_of_the_curve_through_the_point(tpr: float, fpr: float) -> None:
    apart, step = stats.norm.ppf(tpr) - stats.norm.ppf(fpr), 1e-4 * fpr

    def curve(at: float) -> float:
        return float(stats.norm.cdf(apart + stats.norm.ppf(at)))

    assert roc_slope(tpr, fpr) == pytest.approx((curve(fpr + step) - curve(fpr - step)) / (2 * step), rel=1e-6)
