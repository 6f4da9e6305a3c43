"""The code in the README and the documents runs as it stands there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / document).read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("document", ["README.md", "docs/methods.md"])
def test_python_blocks_run(document: str, tmp_path: Path) -> None:
    found = blocks(document, "python")
    assert found
    for block in found:
        script = tmp_path / "block.py"
        script.write_text(block)
        done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_commands_of_the_readme_run(tmp_path: Path) -> None:
    lines = [line for block in blocks("README.md", "bash") for line in block.splitlines() if line.strip()]
    assert len(lines) >= 6
    for line in lines:
        words = shlex.split(line, comments=True)
        assert words[0] == "warp"
        program = [sys.executable, "-c", "from warp_unlearning.cli.main import main; main()"]
        done = subprocess.run([*program, *words[1:]], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (line, done.stderr)
    assert (tmp_path / "runs/second/record.json").is_file()


def test_the_readme_names_every_method() -> None:
    from warp_unlearning.methods import method_classes

    text = (ROOT / "README.md").read_text()
    assert all(f"`{name}`" in text for name in method_classes())
