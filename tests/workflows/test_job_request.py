from __future__ import annotations

from pathlib import Path

from warp_unlearning.runs.keys import Key
from warp_unlearning.workflows.job_request import JobRequest


def test_the_store_is_in_the_folder_unless_another_is_named(tmp_path: Path) -> None:
    key = Key("train", 1, {"n": 1})
    JobRequest({}, tmp_path / "run").open_store().write(key, {"a": b""}, seconds=1.0)
    assert (tmp_path / "run" / "store").is_dir()
    shared = tmp_path / "run" / "store"
    assert JobRequest({}, tmp_path / "other", shared).open_store().has(key)
    assert not JobRequest({}, tmp_path / "other").open_store().has(key)
