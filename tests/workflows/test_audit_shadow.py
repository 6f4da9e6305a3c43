"""A shadow audit as a run: taken up again, by two processes at once, with jobs that fail."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from warp_unlearning.config import ModelConfig, ShadowConfig, resolve_as
from warp_unlearning.errors import DataError, InputError
from warp_unlearning.runs.local import run_here, run_local
from warp_unlearning.studies.shadow_cost import known_seconds
from warp_unlearning.studies.shadow_plan import Task
from warp_unlearning.workflows.audit_secret import FILE
from warp_unlearning.workflows.audit_shadow import RESULTS, ShadowRequest, carry_out, prepare_shadows

COMMAND = [sys.executable, "-c", "from warp_unlearning.cli.main import main; main()", "audit", "shadow"]


def settings(blobs: Path) -> dict[str, Any]:
    return {
        "data": {"name": "npz", "path": str(blobs)},
        "model": {"name": "mlp", "options": {"hidden": [8]}},
        "training": {"epochs": 2, "batch_size": 16},
        "methods": ["ngp"],
        "method_options": {"ngp": {"epochs": 1, "batch_size": 16}},
        "defenses": ["cob"],
        "shadows": 4,
        "forget_sets": 2,
        "share": 0.5,
        "device": "cpu",
    }


@pytest.fixture(scope="module")
def config(blobs: Path) -> ShadowConfig:
    return resolve_as(ShadowConfig, base=settings(blobs))


def digest(folder: Path) -> str:
    found: str = json.loads((folder / RESULTS).read_text())["digests"]["results"]
    return found


@pytest.mark.long
def test_a_run_is_done_once_and_its_store_can_be_shared(config: ShadowConfig, tmp_path: Path) -> None:
    request = ShadowRequest(config, tmp_path / "run", tmp_path / "store")
    first = carry_out(prepare_shadows(request), partial(run_local, workers=2))
    assert first["failures"] == []
    assert {stage["name"]: stage["done"] for stage in first["stages"]} == {
        "train": 4,
        "score": 20,
        "unlearn": 16,
        "pair": 2,
    }
    again = prepare_shadows(request)
    assert len(known_seconds(again.plan, again.store)) == 42
    assert carry_out(again, partial(run_local, workers=1)) == first
    # Another run has other secret draws: the trainings and the undefended models are there, the defended are not.
    other = prepare_shadows(ShadowRequest(config, tmp_path / "other", tmp_path / "store"))
    assert len(known_seconds(other.plan, other.store)) == 4 + 4 + 8 + 8 + 1


def test_a_changed_configuration_is_another_run(config: ShadowConfig, tmp_path: Path) -> None:
    prepare_shadows(ShadowRequest(config, tmp_path / "run"))
    changed = config.model_copy(update={"shadows": 6})
    with pytest.raises(InputError, match=r"another configuration \(shadows: 4 there, 6 now\); choose another --out"):
        prepare_shadows(ShadowRequest(changed, tmp_path / "run"))


def test_a_method_that_fails_leaves_the_rest(config: ShadowConfig, tmp_path: Path) -> None:
    options = {
        "methods": ["ngp", "finetune"],
        "method_options": {"finetune": {"lr": 1e30, "epochs": 2}},
        "defenses": [],
    }
    request = ShadowRequest(config.model_copy(update=options), tmp_path / "run")
    results = carry_out(prepare_shadows(request), run_here)
    good, bad = results["arms"]
    assert (good["complete"], good["missing"], good["problem"]) == (True, 0, None)
    assert (bad["complete"], bad["missing"], bad["all"]) == (False, 8, None)
    assert bad["problem"]
    assert any("finite" in failure["reason"] for failure in results["failures"])
    assert len(results["failures"]) == 8 + 8 + 1
    assert not (tmp_path / "run" / "manifest.json").exists()


def test_a_result_that_is_corrupt_at_the_end_is_made_again(config: ShadowConfig, tmp_path: Path) -> None:
    request = ShadowRequest(config.model_copy(update={"defense_seed": 1}), tmp_path / "run")
    first = carry_out(prepare_shadows(request), run_here)
    other = ShadowRequest(request.config, tmp_path / "again", tmp_path / "run" / "store")
    prepared = prepare_shadows(other)
    lost = prepared.plan.key(Task("score", 2, 1, 0))
    prepared.store.path(lost.digest).write_bytes(b"damaged")
    made = {entry.key: entry.made for entry in prepared.store.entries()}
    results = carry_out(prepared, run_here)
    assert results["digests"]["results"] == first["digests"]["results"]
    again = {entry.key: entry.made for entry in prepared.store.entries()}
    assert {key for key in again if again[key] != made.get(key)} == {lost}


def test_a_finished_audit_that_was_edited_is_not_believed(config: ShadowConfig, tmp_path: Path) -> None:
    request = ShadowRequest(config.model_copy(update={"defense_seed": 1}), tmp_path / "run")
    carry_out(prepare_shadows(request), run_here)
    assert carry_out(prepare_shadows(request), run_here)["failures"] == []
    file = tmp_path / "run" / RESULTS
    file.write_text(file.read_text().replace('"failures": []', '"failures": [1]'))
    with pytest.raises(DataError, match="not what the manifest says"):
        carry_out(prepare_shadows(request), run_here)


def test_a_plan_of_an_audit_touches_nothing(config: ShadowConfig, tmp_path: Path) -> None:
    request = ShadowRequest(config, tmp_path / "run")
    assert len(prepare_shadows(request, plan_only=True).plan.jobs) == 42
    assert not (tmp_path / "run").exists()
    keys = {job.key for job in prepare_shadows(request).plan.jobs}
    assert {job.key for job in prepare_shadows(request, plan_only=True).plan.jobs} == keys


def test_a_users_own_network_is_audited(config: ShadowConfig, tmp_path: Path) -> None:
    file = tmp_path / "network.py"
    file.write_text("from torch import nn\n\n\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(6, 3))\n")
    own = config.model_copy(update={"model": ModelConfig(name="custom")})
    request = ShadowRequest(own, tmp_path / "run", network_file=f"{file}:build")
    results = carry_out(prepare_shadows(request), run_here)
    assert (results["failures"], results["audited"]["model"]) == ([], f"{file}:build")
    file.write_text(file.read_text().replace("Linear(6, 3)", "Linear(6, 3, bias=False)"))
    with pytest.raises(InputError, match="network_file"):
        prepare_shadows(request)


@pytest.mark.long
def test_two_processes_at_once_end_with_one_result(blobs: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings(blobs)))
    command = [*COMMAND, tmp_path / "config.yaml", "--out", tmp_path / "run", "--workers", "1", "--json"]
    pair = [
        subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=240) for process in pair]
    assert [process.returncode for process in pair] == [0, 0], answers
    digests = {json.loads(out)["digests"]["results"] for out, _ in answers}
    assert digests == {digest(tmp_path / "run")}
    prepared = prepare_shadows(ShadowRequest(resolve_as(ShadowConfig, base=settings(blobs)), tmp_path / "run"))
    assert prepared.run.complete
    assert not any(map(prepared.store.fault, prepared.store.digests()))


def test_bad_settings(config: ShadowConfig, tmp_path: Path) -> None:
    cases = [
        ({"methods": ["npg"]}, "ngp"),
        ({"defenses": ["wrap"]}, "warp"),
        ({"method_options": {"scrub": {}}}, "not among the methods"),
        ({"defense_options": {"warp": {}}}, "not among the defences"),
    ]
    for change, message in cases:
        with pytest.raises(InputError, match=message):
            prepare_shadows(ShadowRequest(config.model_copy(update=change), tmp_path / "bad"))
    assert not (tmp_path / "bad").exists()
    with pytest.raises(InputError, match="shadows is 5"):
        resolve_as(ShadowConfig, overrides=["shadows=5"])
    with pytest.raises(InputError, match="has no key 'shadow'; did you mean 'shadows'"):
        resolve_as(ShadowConfig, overrides=["shadow=4"])


@pytest.mark.slow
def test_thirty_kills_change_nothing(blobs: Path, tmp_path: Path) -> None:
    """Killed with all its processes at random moments, and started again each time, until nobody stops it."""
    import random
    import time

    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings(blobs) | {"shadows": 8, "forget_sets": 4}))
    chance = random.Random(20)
    options = ["--workers", "2", "--progress", "none", "--store", str(tmp_path / "store")]
    command = [*COMMAND, str(tmp_path / "config.yaml"), "--out", str(tmp_path / "killed"), *options]
    kills = 0
    while kills < 30:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        time.sleep(chance.uniform(1.0, 6.0))
        if process.poll() is not None:
            break
        process.kill()
        process.wait()
        kills += 1
    assert subprocess.run(command, check=False).returncode == 0
    secret = (tmp_path / "killed" / FILE).read_text()
    calm = tmp_path / "calm"
    request = ShadowRequest(resolve_as(ShadowConfig, file=tmp_path / "config.yaml"), calm, tmp_path / "other store")
    prepare_shadows(request)
    (calm / FILE).write_text(secret)
    carry_out(prepare_shadows(request), partial(run_local, workers=2))
    assert kills == 30
    assert digest(calm) == digest(tmp_path / "killed")
