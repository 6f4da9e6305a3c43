"""The secret numbers of a shadow audit: drawn once, the same at every start, in no file that others read."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from warp_unlearning.errors import DataError
from warp_unlearning.runs.directory import RunDirectory, start_run
from warp_unlearning.studies.shadow_plan import unlearnings
from warp_unlearning.studies.shadow_settings import Arm, ShadowSettings
from warp_unlearning.workflows.defense_seeds import SEEDS, defense_seeds

ARMS = (Arm("ngp", {}), Arm("ngp", {}, "cob"))
SETTINGS = ShadowSettings({}, "mlp", {}, {}, ARMS, shadows=4, forget_sets=2)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return start_run(tmp_path / "run", kind="audit shadow", config={})


def test_numbers_are_drawn_once_and_kept_from_others(run: RunDirectory, tmp_path: Path) -> None:
    seeds = defense_seeds(run, SETTINGS, None)
    assert list(seeds) == list(unlearnings(SETTINGS))
    assert len(set(seeds.values())) == 16
    assert defense_seeds(run, SETTINGS, None) == seeds
    assert json.loads((run.path / SEEDS).read_text()) == list(seeds.values())
    assert stat.S_IMODE((run.path / SEEDS).stat().st_mode) == 0o600
    assert stat.S_IMODE((run.path / SEEDS).parent.stat().st_mode) == 0o700
    other = start_run(tmp_path / "other", kind="audit shadow", config={})
    assert not set(defense_seeds(other, SETTINGS, None).values()) & set(seeds.values())


def test_an_experiment_fixes_them_and_leaves_no_file(run: RunDirectory) -> None:
    seeds = defense_seeds(run, SETTINGS, 3)
    assert seeds == defense_seeds(run, SETTINGS, 3) != defense_seeds(run, SETTINGS, 4)
    assert not (run.path / SEEDS).exists()
    # Those of an unlearning do not depend on how many others there are.
    fewer = defense_seeds(run, replace(SETTINGS, shadows=2), 3)
    assert fewer == {task: seeds[task] for task in fewer}


def test_lost_secrets_are_not_drawn_again_in_silence(run: RunDirectory) -> None:
    defense_seeds(run, SETTINGS, None)
    (run.path / SEEDS).write_text("[1, 2")
    with pytest.raises(DataError, match="begin a new run"):
        defense_seeds(run, SETTINGS, None)
    (run.path / SEEDS).write_text("[1, 2]")
    with pytest.raises(DataError, match="does not hold 16 numbers"):
        defense_seeds(run, SETTINGS, None)
