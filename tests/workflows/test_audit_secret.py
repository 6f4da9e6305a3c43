"""The secret of a shadow audit: drawn once, the same at every start, in no file that others read."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from warp_unlearning.errors import DataError
from warp_unlearning.runs.directory import RunDirectory, start_run
from warp_unlearning.workflows.audit_secret import FILE, audit_secret


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return start_run(tmp_path / "run", kind="audit shadow", config={})


def test_a_secret_is_drawn_once_and_kept_from_others(run: RunDirectory, tmp_path: Path) -> None:
    secret = audit_secret(run, None)
    assert audit_secret(run, None) == secret
    assert 2**200 < secret.seed < 2**256
    assert stat.S_IMODE((run.path / FILE).stat().st_mode) == 0o600
    assert stat.S_IMODE((run.path / FILE).parent.stat().st_mode) == 0o700
    other = audit_secret(start_run(tmp_path / "other", kind="audit shadow", config={}), None)
    assert other.seed != secret.seed
    assert other.name != secret.name


def test_an_experiment_fixes_it_and_leaves_no_file(run: RunDirectory) -> None:
    assert audit_secret(run, 3) == (3, 3)
    assert not (run.path / FILE).exists()


@pytest.mark.parametrize("damaged", ["[1, 2", "[1, 2]", json.dumps({"name": "a"}), json.dumps({"secret": "x"})])
def test_a_lost_secret_is_not_drawn_again_in_silence(run: RunDirectory, damaged: str) -> None:
    audit_secret(run, None)
    (run.path / FILE).write_text(damaged)
    with pytest.raises(DataError, match="begin a new run"):
        audit_secret(run, None)
