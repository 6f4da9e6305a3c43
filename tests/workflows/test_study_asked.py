"""What is asked of a study: settings of a configuration, over those of tuned recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from warp_unlearning.config import ReproduceConfig
from warp_unlearning.studies.cell_settings import StudyArm
from warp_unlearning.studies.study import study_settings
from warp_unlearning.workflows.study_asked import asked_of


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    arms = [
        {
            "method": "ngp",
            "defense": defense,
            "methods": ["ngp"],
            "method_options": {"ngp": {"lr": lr, "batch_size": 16, "epochs": 1}},
            "defenses": [defense] if defense else [],
            "defense_options": {defense: {"step_size": 0.03, "protect": "both", "aim": "descent"}} if defense else {},
            "trial": 3,
            "objectives": {},
        }
        for defense, lr in ((None, 0.5), ("warp", 0.25))
    ]
    written = {"schema_version": 1, "kind": "recipes", "provenance": {}, "arms": arms}
    (tmp_path / "recipes.yaml").write_text(yaml.safe_dump(written))
    return tmp_path / "recipes.yaml"


def arms_of(recipes: Path | None, **changes: Any) -> dict[str, StudyArm]:
    config = ReproduceConfig(study="table1", methods=["ngp"], device="cpu", recipes=recipes, **changes)
    return {arm.name: arm for arm in study_settings("table1", "small", asked_of(config)).arms}


def test_tuned_settings_are_those_of_each_arm(recipes: Path) -> None:
    found = arms_of(recipes)
    assert found["ngp"].method_settings["lr"] == 0.5
    assert found["ngp + warp"].method_settings["lr"] == 0.25
    assert found["ngp + warp"].defense_settings["step_size"] == 0.03
    warp = found["ngp + warp"].defense_settings
    assert found["ngp + kick"].defense_settings == warp | {"aim": "random"}
    assert found["ngp + kick"].method_settings["lr"] == 0.25
    assert found["ngp + fastwarp"].method_settings["lr"] == 0.5


def test_what_is_given_goes_over_the_recipes_of_every_arm_that_has_it(recipes: Path) -> None:
    found = arms_of(recipes, method_options={"ngp": {"epochs": 7}}, defense_options={"warp": {"step_size": 0.5}})
    assert [arm.method_settings["epochs"] for arm in found.values()] == [7] * 7
    assert [found[name].method_settings["lr"] for name in ("ngp", "ngp + warp", "ngp + kick")] == [0.5, 0.25, 0.25]
    assert found["ngp + warp"].defense_settings["step_size"] == 0.5
    assert found["ngp + kick"].defense_settings["step_size"] == 0.03


def test_a_method_that_is_named_twice_is_asked_for_once() -> None:
    assert asked_of(ReproduceConfig(study="table1", methods=["scrub", "ngp", "scrub"])).methods == ("scrub", "ngp")
