"""Each of ten checks, taken out of a copy of the package, makes the short form of the suite fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What is checked: the file, a piece of it, and what stands there instead.
CHECKS = {
    "NaN inputs": ("data/examples.py", "if len(bad):", "if False:"),
    "label range": ("models/own.py", "if bool(outside.any()):", "if False:"),
    "drop_last": ("data/examples.py", "if loader.drop_last:", "if False:"),
    "samplers": ("data/examples.py", "if sorted(drawn) != list(range(count)):", "if False:"),
    "seeds": ("randomness.py", "if isinstance(value, bool) or not isinstance(value, Integral):", "if False:"),
    "shapes of weights": ("models/weights.py", "state[name].shape != tensor.shape", "False"),
    "links in a run": ("runs/directory.py", "if file.is_symlink() or not", "if False and not"),
    "repeated keys": ("runs/directory.py", "if name in lines:", "if False:"),
    "trusted files": ("cli/subject.py", "if not is_trusted(own)]:", "if False]:"),
    "length of a mask": ("data/table.py", 'if len(values) != table.train or by == "id":', "if False:"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", CHECKS)
def test_a_check_less_is_found(what: str, tmp_path: Path) -> None:
    name, piece, instead = CHECKS[what]
    shutil.copytree(ROOT / "src", tmp_path / "src")
    file = tmp_path / "src" / "warp_unlearning" / name
    assert file.read_text().count(piece) == 1
    file.write_text(file.read_text().replace(piece, instead))
    command = [sys.executable, "-m", "pytest", "-x", "-n", "0", "-m", "not long and not slow", "tests/fuzz"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout[-500:]
    assert "_bad_calls" in done.stdout or "_damaged_files" in done.stdout
