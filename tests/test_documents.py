"""The code in the README and the documents runs as it stands there."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = pytest.mark.documents
FILE = re.compile(r"# (\w+\.py)\n")
PROGRAMS = {
    "warp": [sys.executable, "-c", "from warp_unlearning.cli.main import main; main()"],
    "python": [sys.executable],
}


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / document).read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def brief() -> Iterator[None]:
    """The digits that several blocks start from are trained once, and less: that they are trained well is tested
    elsewhere.
    """
    from warp_unlearning.conformance import problem

    trained = cache(partial(problem.digits_problem, epochs=2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(problem, "digits_problem", lambda seed: deepcopy(trained(seed)))
        yield


@pytest.mark.long
@pytest.mark.parametrize(
    "document", ["README.md", "docs/methods.md", "docs/defenses.md", "docs/bounds.md", "docs/reconstruction.md"]
)
@pytest.mark.usefixtures("brief")
def test_python_blocks_run(document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = blocks(document, "python")
    assert found
    for i, block in enumerate(found):
        # Classes of a block are looked for in its module.
        module = ModuleType(f"block{i}")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(block, document, "exec"), module.__dict__)


def test_python_blocks_run_as_programs(tmp_path: Path) -> None:
    for block in blocks("docs/audits.md", "python"):
        (tmp_path / "block.py").write_text(block)
        done = subprocess.run([sys.executable, "block.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def run_line(line: str, folder: Path) -> None:
    """Run `warp ...` or `python FILE.py` in a folder; "# exit 3" behind it says that the exit code is not to be 0."""
    words = shlex.split(line, comments=True)
    place = os.environ | {"XDG_STATE_HOME": str(folder / "state")}
    done = subprocess.run(
        [*PROGRAMS[words[0]], *words[1:]], cwd=folder, env=place, capture_output=True, text=True, check=False
    )
    expected = re.search(r"# exit (\d+)", line)
    assert done.returncode == (int(expected[1]) if expected else 0), (line, done.stdout, done.stderr)


def set_up(document: str, folder: Path) -> None:
    """Write the blocks of a document that begin with "# NAME.py", and run its lines `python NAME.py`."""
    for block in blocks(document, "python"):
        if name := FILE.match(block):
            (folder / name[1]).write_text(block)
    for line in command_lines(document):
        if line.startswith("python "):
            run_line(line, folder)


def command_lines(document: str) -> list[str]:
    return [line for block in blocks(document, "bash") for line in block.splitlines() if line.strip()]


@DOCUMENTS
@pytest.mark.parametrize(
    ("document", "made"),
    [
        ("README.md", ["runs/second/record.json", "runs/moved/results.json", "runs/audit/results.json"]),
        ("docs/audits.md", ["runs/audit/results.json", "runs/hidden-audit/scores.npz"]),
        ("docs/bounds.md", ["runs/bounds/results.json", "runs/bounds/bounds.png"]),
        (
            "docs/reconstruction.md",
            ["runs/rebuilt/results.json", "runs/rebuilt/results-with-images.html"],
        ),
    ],
)
def test_commands_run(document: str, made: list[str], tmp_path: Path) -> None:
    if document == "README.md":
        set_up("docs/quickstart.md", tmp_path)
    if document == "docs/audits.md":
        set_up(document, tmp_path)
    lines = command_lines(document)
    assert len(lines) >= 6
    for line in lines:
        run_line(line, tmp_path)
    for file in made:
        assert (tmp_path / file).is_file()


@DOCUMENTS
def test_the_quickstart_can_be_followed(tmp_path: Path) -> None:
    """Every command and program of it, in its order."""
    document = "docs/quickstart.md"
    set_up(document, tmp_path)
    steps = re.findall(r"^```(python|bash)\n(.*?)^```", (ROOT / document).read_text(), re.DOTALL | re.MULTILINE)
    for i, (language, block) in enumerate(steps):
        if language == "python" and not FILE.match(block):
            (tmp_path / f"block{i}.py").write_text(block)
            run_line(f"python block{i}.py", tmp_path)
        for line in block.splitlines() if language == "bash" else ():
            if line.startswith("warp "):
                run_line(line, tmp_path)
    record = json.loads((tmp_path / "runs/second/record.json").read_text())
    assert [done["requested"] for done in record["deletions"]] == [300, 50]


def test_the_readme_names_every_method() -> None:
    from warp_unlearning.methods import method_classes

    text = (ROOT / "README.md").read_text()
    assert all(f"`{name}`" in text for name in method_classes())


def test_the_documents_name_every_defence_symmetry_and_option() -> None:
    from warp_unlearning.defense.registry import defense_names, defense_options
    from warp_unlearning.symmetry.base import symmetry_names, symmetry_options

    readme, text = ((ROOT / name).read_text() for name in ("README.md", "docs/defenses.md"))
    assert all(f"`{name}`" in readme for name in defense_names())
    options = [o.name for name in defense_names() for o in defense_options(name).options]
    options += [o.name for name in symmetry_names() for o in symmetry_options(name)]
    for name in (*defense_names(), *symmetry_names(), *options):
        assert f"`{name}`" in text, name


def _yaml(value: object) -> str:
    return {"True": "true", "None": "null"}.get(str(value), str(value))


@pytest.mark.parametrize("name", ["warp", "cob", "conjugate"])
def test_the_defaults_in_the_document_are_those_of_the_code(name: str) -> None:
    """Rows "| `option`, `option` | default, default | ..." below the heading of the defence, or one default for all; of
    "`this` or `that`" the default is that of the first, as its help says.
    """
    from warp_unlearning.defense.registry import defense_options

    text = (ROOT / "docs/defenses.md").read_text()
    (section,) = re.findall(rf"^## `{name}`.*?(?=^## )", text, re.DOTALL | re.MULTILINE)
    stated = {}
    for options, defaults in re.findall(r"^\| (`.*?) \| (.*?) \|", section, re.MULTILINE):
        names, values = re.findall(r"`(\w+)`", options), [value.strip("` ") for value in defaults.split(",")]
        others = "null" if " or " in options else values[-1]
        stated |= dict(zip(names, [*values, *[others] * (len(names) - len(values))], strict=True))
    about = defense_options(name)
    known = (*(about.options if name != "cob" else ()), *about.symmetry_options)
    unless = {o.name: re.search(r"([\d.]+) unless", o.help) for o in known}
    assert stated == {o.name: found[1] if (found := unless[o.name]) else _yaml(o.default) for o in known}


def test_the_documents_name_every_attack_and_pre_step() -> None:
    from warp_unlearning.attacks.undo import pre_steps

    text = (ROOT / "docs/audits.md").read_text()
    attacks = ("confidence", "confidence drop", "gradient norm", "gradient difference", "update alignment")
    single = [name for name in pre_steps() if name != "naive" and "+" not in name]
    assert all(f"| {name} |" in text for name in (*attacks, *single))


def test_the_documents_name_every_attack_that_rebuilds_images() -> None:
    from warp_unlearning.attacks.reconstruction.attacks import ATTACKS

    text = (ROOT / "docs/reconstruction.md").read_text()
    named = re.findall(r"^\| `(.*?)` \|", text, re.MULTILINE)
    assert sorted(named) == sorted(name for name in ATTACKS if "+" not in name)
