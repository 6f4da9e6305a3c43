from __future__ import annotations

import sys
from pathlib import Path

import pytest
from torch import nn

from warp_unlearning.errors import InputError
from warp_unlearning.models.own import load_builder

GOOD = """
from __future__ import annotations
from dataclasses import dataclass
from torch import nn
from warp_unlearning.errors import InputError

@dataclass
class Options:
    size: int = 3

def build(size: int = 3) -> nn.Module:
    return nn.Linear(Options(size).size, 2)

def listed():
    return [1]

def failing():
    raise RuntimeError("first\\n second")

def refusing():
    raise InputError("mine")

number = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(GOOD)
    return path


def test_the_builder_builds_with_its_options(file: Path) -> None:
    model = load_builder(f"{file}:build")(size=5)
    assert isinstance(model, nn.Linear)
    assert model.in_features == 5


def test_a_class_may_be_the_builder(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("from torch import nn\nclass Net(nn.Linear):\n    pass\n")
    model = load_builder(f"{tmp_path}/a.py:Net")(2, 4)
    assert type(model).__name__ == "Net"


def test_files_of_one_name_in_two_folders_stay_apart(tmp_path: Path) -> None:
    for size in (1, 2):
        folder = tmp_path / str(size)
        folder.mkdir()
        (folder / "model.py").write_text(f"from torch import nn\ndef build():\n    return nn.Linear({size}, 1)\n")
    builders = [load_builder(f"{tmp_path}/{size}/model.py:build") for size in (1, 2)]
    assert [builder().in_features for builder in builders] == [1, 2]
    assert [sys.modules[builder.__module__].build().in_features for builder in builders] == [1, 2]


@pytest.mark.parametrize("spec", ["model.py", "model.py:", ":build", "model:build", "model.txt:build", ""])
def test_a_spec_of_another_form_is_refused(spec: str) -> None:
    with pytest.raises(InputError, match=r"write it as FILE\.py:NAME"):
        load_builder(spec)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    for name in ("absent.py", "folder.py"):
        with pytest.raises(InputError, match=f"{name} is no file"):
            load_builder(f"{tmp_path}/{name}:build")


def test_an_unknown_name_gets_the_nearest(file: Path) -> None:
    with pytest.raises(InputError, match="has no 'biuld'; did you mean 'build'"):
        load_builder(f"{file}:biuld")


def test_what_cannot_be_called_is_refused(file: Path) -> None:
    with pytest.raises(InputError, match=r"'number' in .* is a int; name a function"):
        load_builder(f"{file}:number")


@pytest.mark.parametrize(
    ("text", "cause", "message"),
    [
        ("raise ValueError('one\\n two')", ValueError, "ValueError: one two; make"),
        ("def (", SyntaxError, "SyntaxError: "),
        ("import no_such_module_anywhere", ModuleNotFoundError, "no_such_module_anywhere"),
        ("raise SystemExit", SystemExit, "SystemExit; make"),
    ],
)
def test_a_file_that_fails_is_told_in_one_line_with_its_cause(
    tmp_path: Path, text: str, cause: type[BaseException], message: str
) -> None:
    (tmp_path / "bad.py").write_text(text)
    before = set(sys.modules)
    with pytest.raises(InputError, match=message) as caught:
        load_builder(f"{tmp_path}/bad.py:build")
    assert isinstance(caught.value.__cause__, cause)
    assert "\n" not in str(caught.value)
    assert not {name for name in set(sys.modules) - before if name.startswith("user_model_")}


def test_a_builder_that_returns_no_module_is_refused(file: Path) -> None:
    with pytest.raises(InputError, match=r"listed returned a list; make it return an nn\.Module"):
        load_builder(f"{file}:listed")()


def test_a_builder_that_fails_is_told_in_one_line_with_its_cause(file: Path) -> None:
    with pytest.raises(InputError, match="failing failed to build a model: RuntimeError: first second;") as caught:
        load_builder(f"{file}:failing")()
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_unknown_options_are_told_in_one_line(file: Path) -> None:
    with pytest.raises(InputError, match="unexpected keyword argument 'sizes'"):
        load_builder(f"{file}:build")(sizes=2)


def test_errors_of_this_package_pass_through(file: Path) -> None:
    with pytest.raises(InputError, match=r"^mine$"):
        load_builder(f"{file}:refusing")()


def test_lazy_layers_are_refused_when_they_are_built(tmp_path: Path) -> None:
    (tmp_path / "lazy.py").write_text("from torch import nn\n\ndef build():\n    return nn.LazyLinear(3)\n")
    with pytest.raises(InputError, match=r"weight of what .*lazy\.py:build returned has no shape yet"):
        load_builder(f"{tmp_path}/lazy.py:build")()
