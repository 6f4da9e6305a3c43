from __future__ import annotations

from typing import Any

from warp_unlearning.studies.tuning_recipes import at_matched_accuracy, recipes, shadow_options
from warp_unlearning.studies.tuning_results import frontier

Arm = dict[str, Any]


def trial(number: int, *, norm: float, accuracy: float, advantage: float, lr: float) -> Arm:
    return {
        "number": number,
        "state": "complete",
        "method_settings": {"lr": lr},
        "defense_settings": {"energy": lr * 10},
        "objectives": {"membership": norm},
        "norm": norm,
        "accuracy": {"held_out": accuracy},
        "held_out_accuracy": accuracy,
        "advantage": advantage,
    }


def arm(name: str, trials: list[Arm], chosen: int | None) -> Arm:
    method, _, defense = name.partition(" + ")
    told = None if chosen is None else {"trial": chosen, **{k: v for k, v in trials[chosen].items() if k != "number"}}
    return {"name": name, "method": method, "defense": defense or None, "trials": trials, "chosen": told}


def results(*arms: Arm) -> dict[str, Any]:
    return {"arms": list(arms), "notes": [], "retrained": {}}


def failed(number: int) -> Arm:
    return {"number": number, "state": "failed"}


BASE = [
    trial(0, norm=0.1, accuracy=0.90, advantage=0.30, lr=0.1),
    trial(1, norm=0.2, accuracy=0.895, advantage=0.20, lr=0.2),
    trial(2, norm=0.3, accuracy=0.80, advantage=0.01, lr=0.3),
]
DEFENDED = [
    trial(0, norm=0.1, accuracy=0.85, advantage=0.05, lr=0.4),
    failed(1),
    trial(2, norm=0.4, accuracy=0.95, advantage=0.10, lr=0.5),
]


def test_the_least_advantage_is_chosen_among_those_as_accurate_as_the_base() -> None:
    given = results(arm("ngp", BASE, 0), arm("ngp + warp", DEFENDED, 0))
    base, defended = at_matched_accuracy(given, frontier(given))["arms"]
    assert (base["chosen"]["trial"], base["chosen"]["advantage"]) == (1, 0.20)
    assert base["chosen"]["method_settings"] == {"lr": 0.2}
    assert (defended["chosen"]["trial"], defended["chosen"]["norm"]) == (2, 0.4)
    assert [a["chosen"]["trial"] for a in given["arms"]] == [0, 0]


def test_an_arm_that_is_never_as_accurate_has_no_choice_and_no_recipe() -> None:
    given = results(arm("ngp", BASE, 0), arm("ngp + warp", DEFENDED[:2], 0))
    matched = at_matched_accuracy(given, frontier(given))
    assert matched["arms"][1]["chosen"] is None
    found = recipes(matched, {"made_by": "a test"})
    assert [(each["method"], each["defense"], each["trial"]) for each in found["arms"]] == [("ngp", None, 1)]
    assert found["provenance"] == {"made_by": "a test"}


def test_without_a_choice_of_the_base_there_is_nothing_to_match() -> None:
    given = results(arm("ngp", [failed(0)], None), arm("ngp + warp", DEFENDED, 0))
    assert [a["chosen"] for a in at_matched_accuracy(given, frontier(given))["arms"]] == [None, None]


def test_options_are_those_of_a_shadow_audit() -> None:
    assert shadow_options(arm("ngp + warp", DEFENDED, 2)) == {
        "methods": ["ngp"],
        "method_options": {"ngp": {"lr": 0.5}},
        "defenses": ["warp"],
        "defense_options": {"warp": {"energy": 5.0}},
    }
    alone = shadow_options(arm("ngp", BASE, 1))
    assert (alone["defenses"], alone["defense_options"]) == ([], {})
