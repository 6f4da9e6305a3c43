"""What a study says: changes that defences make, and how much of it there is."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from warp_unlearning.errors import DataError
from warp_unlearning.report.paper_study import audited_text, problems, read_study
from warp_unlearning.report.paper_tables import render
from warp_unlearning.stats.intervals import Estimate

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
    assert item.swept == {"energy": 0.99}
    assert [(a.name, a.pairs, a.auc.value) for a in item.pair_attacks] == [("span", 3, 0.6)]
    assert found.changed(item)[0].paired
    assert found.changed(item)[0].estimate == Estimate(**estimate(0.05))
    assert found.changed(item)[2].estimate == Estimate(**estimate(0.2))
    assert found.changed(item, "gradient")[1].estimate == Estimate(**estimate(0.3))
    assert item.risk is not None
    assert item.risk.correlation == Estimate(**estimate(0.4))
    assert found.lower_than(item, "kick").estimate == Estimate(**estimate(0.02))


def test_separate_intervals_stand_in_for_paired_ones(study: Make, arm: Make) -> None:
    base, warp = arm("ngp"), arm("ngp", "warp", reduction=None)
    base["all"]["auc"], warp["all"]["auc"] = estimate(0.7), estimate(0.6)
    found = read_study(study("table1", [base, warp]))
    change = found.changed(found.arms[1])[1]
    assert not change.paired
    assert change.estimate is not None
    assert change.estimate.value == pytest.approx(0.5)
    assert change.estimate.low == pytest.approx(1 - 0.11 / 0.19)
    assert change.estimate.high == pytest.approx(1 - 0.09 / 0.21)
    lowered = found.changed(found.arms[1])[0].estimate
    assert lowered is not None
    assert (lowered.low, lowered.high) == pytest.approx((0.08, 0.12))


def test_no_share_of_an_advantage_that_is_not_there(study: Make, arm: Make) -> None:
    base, warp = arm("ngp"), arm("ngp", "warp", reduction=None)
    base["all"]["auc"] = estimate(0.505)
    found = read_study(study("table1", [base, warp]))
    change = found.changed(found.arms[1])[1]
    assert change.estimate is None
    assert "not distinguishable from guessing" in change.note


def test_areas_below_one_half_leak_as_much_as_those_above(study: Make, arm: Make) -> None:
    base, warp = arm("ngp"), arm("ngp", "warp", reduction=None)
    base["all"]["auc"], warp["all"]["auc"] = estimate(0.3), estimate(0.6)
    found = read_study(study("table1", [base, warp]))
    change = found.changed(found.arms[1])[0].estimate
    assert change is not None
    assert change.value == pytest.approx(0.1)


def test_the_base_is_that_of_the_same_sweep_or_the_only_one(study: Make, arm: Make) -> None:
    def at(found: dict[str, Any], value: float) -> dict[str, Any]:
        return {**found, "swept": {"lr": value}}

    base, warp = arm("ngp"), arm("ngp", "warp")
    found = read_study(study("tradeoff", [at(base, 1), at(base, 2), at(warp, 2), at(warp, 3)]))
    assert found.base_of(found.arms[2]) is found.arms[1]
    assert found.base_of(found.arms[3]) is None
    assert "no arm without a defence" in found.changed(found.arms[3], "gradient")[1].note
    alone = read_study(study("sensitivity", [base, at(warp, 3)]))
    assert alone.base_of(alone.arms[1]) is alone.arms[0]


def test_rates_of_several_pairs_may_be_null(study: Make, arm: Make) -> None:
    base = arm("ngp")
    base["gradient_test"]["rates"] = None
    item = read_study(study("whitebox", [base])).arms[0]
    assert item.gradient_test is not None
    assert item.gradient_test.rates is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 3}, "schema version 3; this program reads 1 and 2"),
        ({"schema_version": True}, "schema version True"),
        ({"kind": "shadow"}, "has no field 'date'"),
        ({"arms": []}, "arms is a list of 0"),
        ({"commands": "warp"}, "commands is 'warp'"),
    ],
)
def test_results_of_another_form_are_errors(study: Make, change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_study({**study("table1"), **change})


def test_a_sweep_is_over_numbers(study: Make, arm: Make) -> None:
    with pytest.raises(DataError, match=r"arms\[0\].swept.energy is 'all'"):
        read_study(study("sensitivity", [{**arm("ngp"), "swept": {"energy": "all"}}]))


def test_the_results_of_an_audit_need_only_a_name_and_a_kind(data: dict[str, Any]) -> None:
    found = read_study({**data, "kind": "study", "study": "table1"})
    assert (found.study, found.commands) == ("table1", ())
    assert len(found.arms) == len(data["arms"])


def test_no_change_is_stated_of_an_arm_that_is_not_or_that_was_not_measured(study: Make, arm: Make) -> None:
    base, warp = arm("ngp"), arm("ngp", "warp", reduction=None)
    base["all"] = None
    found = read_study(study("table1", [base, warp]))
    assert found.changed(found.arms[1])[1].note == "the arm without a defence to compare with was not measured"
    found = read_study(study("table1", [warp]))
    assert "there is no arm without a defence" in found.changed(found.arms[0])[1].note
    neither = read_study(study("table1", [base, {**warp, "all": None}]))
    assert neither.changed(neither.arms[1])[1].note == ""


def test_an_arm_that_moved_nothing_has_no_changes(study: Make, arm: Make) -> None:
    warp = arm("ngp", "warp", against={"kick": {"auc": estimate(0.1), "test_accuracy": None}})
    warp["reduction"] |= {"difference": estimate(0.1), "privacy": estimate(0.1)}
    warp["gradient_test"] |= {"difference": estimate(0.1), "reduction": estimate(0.1)}
    moving = read_study(study("table1", [arm("ngp"), warp]))
    assert moving.changed(moving.arms[1])[0].paired
    assert moving.lower_than(moving.arms[1], "kick").paired
    found = read_study(study("table1", [arm("ngp"), {**warp, "teleports": {"unmoved": 1.0}}]))
    item = found.arms[1]
    changes = [*found.changed(item), *found.changed(item, "gradient"), found.lower_than(item, "kick")]
    assert all(change.estimate is None and "no teleport moved anything" in change.note for change in changes)


@pytest.fixture
def begun(study: Make, arm: Make) -> dict[str, Any]:
    """A study of 32 shadows of which the first four have results, and one arm a model of the fifth."""
    four = {"complete": False, "missing": 112, "sets": 4, "shadows": 4, "diverged": 0}
    ten = {"complete": False, "missing": 280, "sets": 10, "shadows": 4, "diverged": 0}
    arms = [
        arm("scrub", **four),
        arm("scrub", "warp", **four),
        arm("ngp", **{**ten, "missing": 279, "shadows": 5}),
        arm("ngp", "warp", **ten),
        arm("bad_teacher", **ten),
        arm("bad_teacher", "warp", **ten),
    ]
    found = study("table1", arms, shadows_complete=2)
    found["audited"] = {**found["audited"], "shadows": 32, "forget_sets": 10}
    return found


def test_what_is_missing_stands_before_every_number(begun: dict[str, Any]) -> None:
    for name in ("table1", "whitebox", "radar", "risk-vs-norm"):
        text = render({**begun, "study": name}).markdown
        title, first = text.split("\n\n")[:2]
        assert title.startswith("## ")
        assert first.startswith(
            "**Incomplete: 2 of 32 shadows are complete, and 193 of 1,536 unlearned models are there, of 4 shadows "
            "(5 of NGP).** Every number below is of what there is"
        )
        assert text.index("Incomplete:") < re.search(r"\d\.\d", text).start()  # type: ignore[union-attr]


def test_forget_sets_are_those_of_each_arm(begun: dict[str, Any]) -> None:
    text = audited_text(read_study(begun))
    assert "Ours, as planned: digits, small_resnet, 32 shadows × 10 forget sets (4 of SCRUB), each of 20 of" in text
    for other in begun["arms"][4:]:
        other["sets"] = 4
    text = audited_text(read_study(begun))
    assert "32 shadows × 4 forget sets (10 of NGP), each of 20 of" in text
    begun["arms"][3]["sets"] = 2
    assert "4 forget sets (2 of NGP + WARP, 10 of NGP), each" in audited_text(read_study(begun))


@pytest.mark.parametrize("name", ["table1", "whitebox", "radar", "risk-vs-norm"])
def test_shadows_whose_models_start_from_different_weights_are_named(begun: dict[str, Any], name: str) -> None:
    again = render({**begun, "study": name, "originals_trained_again": [4, 6]}).markdown
    assert "The originals of shadows 4 and 6 were trained again" in again
    for none in ({"originals_trained_again": []}, {}):
        assert "trained again" not in render({**begun, "study": name, **none}).markdown


def test_a_complete_study_says_nothing_of_the_kind(study: Make, arm: Make) -> None:
    results = study("table1", [arm("ngp", sets=4, shadows=16)], shadows_complete=16)
    results["audited"] = {**results["audited"], "shadows": 16, "data": "cifar10", "model": "resnet18"}
    whole = read_study(results)
    assert whole.whole
    assert audited_text(whole) == (
        "Ours: cifar10, resnet18, 16 shadows × 4 forget sets, each of 20 of 80 training examples, 160 audited points, "
        "seed 20."
    )
    assert problems(whole) == ""


def test_few_shadows_are_said_to_be_few_where_intervals_are_over_them(begun: dict[str, Any]) -> None:
    found = read_study(begun)
    assert "checked with 16 shadows and more; with as few as 4 they" in audited_text(found)
    assert "checked with" not in audited_text(found, of_pairs=True)
    assert "slices" not in audited_text(found, of_pairs=True)
    for arm in begun["arms"]:
        arm["shadows"] = 16
    assert "checked with" not in audited_text(read_study(begun))


def test_arms_alike_share_a_line(begun: dict[str, Any]) -> None:
    text = problems(read_study(begun))
    assert "- scrub, scrub + warp: 112 of 128 models are missing" in text
    assert "- ngp: 279 of 320 models are missing" in text
    assert "- ngp + warp, bad_teacher, bad_teacher + warp: 280 of 320 models are missing" in text
    begun["arms"] = begun["arms"][:2]
    assert problems(read_study(begun)) == "Incomplete:\n\n- each arm: 112 of 128 models are missing"


def test_models_that_diverged_are_results(begun: dict[str, Any]) -> None:
    begun |= {"shadows_complete": 32, "arms": begun["arms"][:1]}
    begun["arms"][0] |= {"missing": 6, "diverged": 6, "shadows": 32}
    found = read_study(begun)
    assert found.whole
    assert (found.made, found.planned) == (128, 128)
    assert "Incomplete" not in audited_text(found)
    assert "- scrub: 6 of 128 models diverged and are left out" in problems(found)
    begun["arms"][0]["missing"] = 8
    begun["shadows_complete"] = 31
    found = read_study(begun)
    assert "31 of 32 shadows are complete, and 126 of 128 unlearned models are there" in audited_text(found)
    assert "2 of 128 models are missing; 6 of 128 models diverged" in problems(found)


def test_points_that_the_audit_leaves_out_are_named(begun: dict[str, Any]) -> None:
    for arm in begun["arms"][:2]:
        arm["all"]["notes"] = ["4193 of 5000 points were dropped."]
    found = read_study(begun)
    assert "- scrub, scrub + warp: 4193 of 5000 points were dropped." in problems(found)
    assert "dropped" not in problems(found, of_pairs=True)


def test_files_that_do_not_say_how_much_there_is_are_read(begun: dict[str, Any]) -> None:
    del begun["shadows_complete"]
    for arm in begun["arms"]:
        for name in ("sets", "shadows", "diverged"):
            del arm[name]
    text = audited_text(read_study(begun))
    assert text.startswith("**Incomplete: 577 of 1,920 unlearned models are there.** Every")
    assert "32 shadows × 10 forget sets, each" in text


@pytest.mark.parametrize("name", ["table1", "whitebox", "radar", "risk-vs-norm", "langevin", "tradeoff", "sensitivity"])
def test_an_arm_in_which_no_teleport_moved_anything_is_no_measured_defence(name: str, study: Make, arm: Make) -> None:
    method = "langevin" if name == "langevin" else "ngp"
    swept = {{"langevin": "epsilon", "sensitivity": "energy"}.get(name, "lr"): 4.0}
    arms = [
        arm("ngp", name="alone", method=method, swept=swept),
        arm("ngp", "warp", name="warp", method=method, swept=swept, teleports={"unmoved": 1.0}),
        arm("ngp", "warp", name="kick", method=method, swept=swept, defense="kick", teleports={"unmoved": 0.25}),
    ]
    text = render(study(name, arms)).markdown
    label = "Langevin + WARP, ε = 4" if name == "langevin" else "NGP + WARP"
    assert f"| {label} (no teleport moved anything) |" in text
    assert "- warp: no teleport moved anything: these are the models without the defence" in text
    assert "- kick: 25 % of the teleports" in text
    if name in ("table1", "whitebox", "tradeoff"):
        assert "‡" in text.split("NGP + WARP (no teleport moved anything) |")[-1]
        assert "‡ no teleport moved anything, so that there is no defence to measure" in text


def test_moved_teleports_and_files_that_do_not_say_are_passed_over(study: Make, arm: Make) -> None:
    for teleports in (None, {"unmoved": 0.0}):
        text = render(study("table1", [arm("ngp"), arm("ngp", "warp", teleports=teleports)])).markdown
        assert "moved anything" not in text
        assert "Teleports that moved nothing" not in text
