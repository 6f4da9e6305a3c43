"""The package as others meet it: its names, its import, and its wheel in an empty environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import warp_unlearning

ROOT = Path(__file__).parent.parent

BLOCK_SURFACE = """
import sys
for name in ("typer", "rich", "pydantic", "yaml", "sklearn", "PIL", "click"):
    sys.modules[name] = None  # importing it fails
"""


def run(*command: str | Path, cwd: Path | None = None) -> str:
    # A path of the one who runs the tests would be one of the empty environment too.
    environment = {name: value for name, value in os.environ.items() if cwd is None or name != "PYTHONPATH"}
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:] or done.stdout[-3000:]
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


@pytest.mark.long
def test_the_wheel_installs_and_runs_in_an_empty_environment(tmp_path: Path) -> None:
    """Beside the wheel there is what it says it needs, and nothing else that the tests were installed with."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("warp_unlearning-*.whl")
    venv.create(tmp_path / "empty")
    python = tmp_path / "empty" / "bin" / "python"
    run(*pip, "--python", python, "install", "--no-deps", wheel)
    (site,) = tmp_path.glob("empty/lib/python*/site-packages")
    (own,) = distributions(path=[str(site)])
    lend_what_is_needed(own, site)
    run(*pip, "--python", python, "check")
    warp = tmp_path / "empty" / "bin" / "warp"
    where = run(python, "-c", "import warp_unlearning; print(warp_unlearning.__file__)", cwd=tmp_path)
    assert str(tmp_path) in where
    assert "ngp" in json.loads(run(warp, "methods", "--json", cwd=tmp_path))
    run(warp, "train", "--epochs", "1", "-o", "model.options.width=2", "--out", "original", cwd=tmp_path)
    options = ["--forget-class", "3", "--method", "retrain", "--out", "result", "--json"]
    results = json.loads(run(warp, "unlearn", "original", *options, cwd=tmp_path))
    assert results["request"]["found"] > 100


def lend_what_is_needed(own: Distribution, site: Path) -> None:
    """Links to the installed files of everything that a distribution requires, and that those require in turn; to
    install two gigabytes again would take minutes.
    """
    wanted, seen = [(own, "")], set()
    while wanted:
        asking, extra = wanted.pop()
        for line in asking.requires or []:
            required = Requirement(line)
            if required.marker is not None and not required.marker.evaluate({"extra": extra}):
                continue
            for asked in {"", *required.extras} - {e for name, e in seen if name == canonicalize_name(required.name)}:
                seen.add((canonicalize_name(required.name), asked))
                wanted.append((distribution(required.name), asked))
    for name in {name for name, _ in seen}:
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or []} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(found.locate_file(top))))
