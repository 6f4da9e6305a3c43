from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from warp_unlearning.errors import DataError
from warp_unlearning.report.measures import Estimate
from warp_unlearning.report.paper.study import read_about, read_study, swept_values

Make = Callable[..., dict[str, Any]]


def estimate(value: float, reach: float = 0.01) -> dict[str, float]:
    return {"value": value, "low": value - reach, "high": value + reach}


def test_arms_are_read_with_what_a_study_adds(study: Make, arm: Make) -> None:
    base, warp = arm("ngp"), arm("ngp", "warp")
    warp["swept"] = {"energy": 0.99}
    warp["pair_attacks"] = [{"name": "span", "auc": estimate(0.6), "pairs": 3, "rates": None}]
    warp["reduction"] |= {"difference": estimate(0.05), "privacy": estimate(0.2)}
    warp["gradient_test"] |= {"reduction": estimate(0.3)}
    warp["risk"] |= {"correlation": estimate(0.4)}
    warp["against"] = {"kick": {"auc": estimate(0.02)}}
    found = read_study(study("table1", [base, warp]))
    item = found.arms[1]
    assert swept_values(found.arms, "energy") == [0.99]
    assert [(a.name, a.pairs, a.auc.value) for a in item.attacks] == [("span", 3, 0.6)]
    assert found.lowered(item).paired
    assert found.lowered(item).estimate == Estimate(**estimate(0.05))
    assert found.privacy_gained(item).estimate == Estimate(**estimate(0.2))
    assert found.gradient_gone(item).estimate == Estimate(**estimate(0.3))
    assert item.correlation == Estimate(**estimate(0.4))
    assert found.lower_than(item, "kick").estimate == Estimate(**estimate(0.02))


def test_separate_intervals_stand_in_for_paired_ones(study: Make, arm: Make) -> None:
    base, warp = arm("ngp"), arm("ngp", "warp", reduction=None)
    base["all"]["auc"], warp["all"]["auc"] = estimate(0.7), estimate(0.6)
    found = read_study(study("table1", [base, warp]))
    change = found.advantage_gone(found.arms[1])
    assert not change.paired
    assert change.estimate is not None
    assert change.estimate.value == pytest.approx(0.5)
    assert change.estimate.low == pytest.approx(1 - 0.11 / 0.19)
    assert change.estimate.high == pytest.approx(1 - 0.09 / 0.21)
    lowered = found.lowered(found.arms[1]).estimate
    assert lowered is not None
    assert (lowered.low, lowered.high) == pytest.approx((0.08, 0.12))


def test_no_share_of_an_advantage_that_is_not_there(study: Make, arm: Make) -> None:
    base, warp = arm("ngp"), arm("ngp", "warp", reduction=None)
    base["all"]["auc"] = estimate(0.505)
    found = read_study(study("table1", [base, warp]))
    change = found.advantage_gone(found.arms[1])
    assert change.estimate is None
    assert "not distinguishable from guessing" in change.note


def test_areas_below_one_half_leak_as_much_as_those_above(study: Make, arm: Make) -> None:
    base, warp = arm("ngp"), arm("ngp", "warp", reduction=None)
    base["all"]["auc"], warp["all"]["auc"] = estimate(0.3), estimate(0.6)
    found = read_study(study("table1", [base, warp]))
    change = found.lowered(found.arms[1]).estimate
    assert change is not None
    assert change.value == pytest.approx(0.1)


def test_the_base_is_that_of_the_same_sweep_or_the_only_one(study: Make, arm: Make) -> None:
    def at(found: dict[str, Any], value: float) -> dict[str, Any]:
        return {**found, "swept": {"lr": value}}

    base, warp = arm("ngp"), arm("ngp", "warp")
    found = read_study(study("tradeoff", [at(base, 1), at(base, 2), at(warp, 2), at(warp, 3)]))
    assert found.base_of(found.arms[2]) is found.arms[1]
    assert found.base_of(found.arms[3]) is None
    assert "no arm without a defence" in found.gradient_gone(found.arms[3]).note
    alone = read_study(study("sensitivity", [base, at(warp, 3)]))
    assert alone.base_of(alone.arms[1]) is alone.arms[0]


def test_rates_of_several_pairs_may_be_null(study: Make, arm: Make) -> None:
    base = arm("ngp")
    base["gradient_test"]["rates"] = None
    item = read_study(study("whitebox", [base])).arms[0]
    assert item.arm.gradient_test is not None
    assert item.arm.gradient_test.rates == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 3}, "schema version 3; this program reads 1 and 2"),
        ({"schema_version": True}, "schema version True"),
        ({"kind": "shadow"}, "kind is 'shadow'"),
        ({"arms": []}, "at least one combination"),
        ({"commands": "warp"}, "commands is 'warp'; a list"),
    ],
)
def test_results_of_another_form_are_errors(study: Make, change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_study({**study("table1"), **change})


def test_a_sweep_is_over_numbers(study: Make, arm: Make) -> None:
    with pytest.raises(DataError, match=r"arms\[0\].swept.energy is 'all'; a number"):
        read_study(study("sensitivity", [{**arm("ngp"), "swept": {"energy": "all"}}]))


def test_the_results_of_an_audit_need_only_a_name_and_a_kind(data: dict[str, Any]) -> None:
    _, about = read_about({**data, "kind": "study", "study": "table1"})
    assert (about.study, about.commands) == ("table1", ())
    assert len(read_study({**data, "kind": "study", "study": "table1"}).arms) == len(data["arms"])


def test_no_change_is_stated_of_an_arm_that_is_not_or_that_was_not_measured(study: Make, arm: Make) -> None:
    base, warp = arm("ngp"), arm("ngp", "warp", reduction=None)
    base["all"] = None
    found = read_study(study("table1", [base, warp]))
    assert found.advantage_gone(found.arms[1]).note == "the arm without a defence to compare with was not measured"
    found = read_study(study("table1", [warp]))
    assert "there is no arm without a defence" in found.advantage_gone(found.arms[0]).note
    neither = read_study(study("table1", [base, {**warp, "all": None}]))
    assert neither.advantage_gone(neither.arms[1]).note == ""


def test_an_arm_that_moved_nothing_has_no_changes(study: Make, arm: Make) -> None:
    warp = arm("ngp", "warp", against={"kick": {"auc": estimate(0.1), "test_accuracy": None}})
    warp["reduction"] |= {"difference": estimate(0.1), "privacy": estimate(0.1)}
    warp["gradient_test"] |= {"difference": estimate(0.1), "reduction": estimate(0.1)}
    moving = read_study(study("table1", [arm("ngp"), warp]))
    assert moving.lowered(moving.arms[1]).paired
    assert moving.lower_than(moving.arms[1], "kick").paired
    found = read_study(study("table1", [arm("ngp"), {**warp, "teleports": {"unmoved": 1.0}}]))
    item = found.arms[1]
    changes = [
        found.lowered(item),
        found.advantage_gone(item),
        found.privacy_gained(item),
        found.lower_than(item, "kick"),
        found.gradient_gone(item),
        found.gradient_lowered(item),
        found.gradient_privacy(item),
    ]
    assert all(change.estimate is None and "no teleport moved anything" in change.note for change in changes)
