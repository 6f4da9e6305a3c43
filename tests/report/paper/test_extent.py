"""What a section says of how much of its study there is."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from warp_unlearning.report.paper.extent import audited_text, problems
from warp_unlearning.report.paper.registry import render
from warp_unlearning.report.paper.study import read_study

Make = Callable[..., dict[str, Any]]


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
    assert whole.complete
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
    assert found.complete
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
    for teleports in (None, {"count": 3}, {"unmoved": 0.0}):
        text = render(study("table1", [arm("ngp"), arm("ngp", "warp", teleports=teleports)])).markdown
        assert "moved anything" not in text
        assert "Teleports that moved nothing" not in text
