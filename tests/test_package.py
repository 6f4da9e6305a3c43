"""The package as others meet it: its names, its import, and its wheel in an empty environment."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

import warp_unlearning

ROOT = Path(__file__).parent.parent

BLOCK_SURFACE = """
import sys
for name in ("typer", "rich", "pydantic", "yaml", "sklearn", "PIL", "click"):
    sys.modules[name] = None  # importing it fails
"""


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_every_public_name_is_there() -> None:
    assert set(warp_unlearning.__all__) <= set(dir(warp_unlearning))
    for name in warp_unlearning.__all__:
        assert getattr(warp_unlearning, name).__doc__


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, warp_unlearning; print('torch' in sys.modules)"
    assert run(sys.executable, "-c", code).strip() == "False"


def test_the_core_runs_without_the_surface() -> None:
    code = (
        BLOCK_SURFACE
        + """
import torch
from warp_unlearning import compare, unlearn
x, y = torch.randn(20, 4), torch.arange(20) % 2
model = torch.nn.Linear(4, 2)
result = unlearn(model, forget=(x[:4], y[:4]), retain=(x[4:], y[4:]), method="scrub")
compare(model, result.model, forget=(x[:4], y[:4]), retain=(x[4:], y[4:]), test=(x, y))
print(len(result.history))
"""
    )
    assert int(run(sys.executable, "-c", code)) > 0


def test_the_wheel_installs_and_runs_in_an_empty_environment(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("warp_unlearning-*.whl")
    venv.create(tmp_path / "empty", with_pip=True)
    python = tmp_path / "empty" / "bin" / "python"
    run(python, *pip[1:], "install", "-c", ROOT / "constraints.txt", wheel)
    warp = tmp_path / "empty" / "bin" / "warp"
    where = run(python, "-c", "import warp_unlearning; print(warp_unlearning.__file__)", cwd=tmp_path)
    assert str(tmp_path) in where
    assert "ngp" in json.loads(run(warp, "methods", "--json", cwd=tmp_path))
    run(warp, "train", "--epochs", "1", "-o", "model.options.width=2", "--out", "original", cwd=tmp_path)
    options = ["--forget-class", "3", "--method", "finetune", "--out", "result", "--json"]
    summary = json.loads(run(warp, "unlearn", "original", *options, cwd=tmp_path))
    assert summary["forgotten"] > 100
