from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from warp_unlearning.errors import InputError
from warp_unlearning.runs.directory import start_run

START = """
import sys
from pathlib import Path
from warp_unlearning.runs.directory import start_run
print(start_run(Path(sys.argv[1]), kind="tune", config={"a": 1}).path)
"""


def test_processes_that_start_together_open_one_run(tmp_path: Path) -> None:
    command = [sys.executable, "-c", START, str(tmp_path / "run")]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    answers = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0] * 4, answers
    assert {out.strip() for out, _ in answers} == {str(tmp_path / "run")}
    with pytest.raises(InputError, match="another configuration"):
        start_run(tmp_path / "run", kind="tune", config={"a": 2})


def test_one_process_at_a_time_writes_in_a_run(tmp_path: Path) -> None:
    run = start_run(tmp_path / "run", kind="tune", config={})
    with run.lock(), pytest.raises(InputError, match="another process is at work"), run.lock(wait=False):
        pass
    with run.lock(wait=False):
        pass
    assert [path.name for path in run.path.iterdir()] == ["config.yaml"]
