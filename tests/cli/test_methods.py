"""`warp methods`, `warp defenses` and `warp config`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warp_unlearning.config import SCHEMAS, describe_keys
from warp_unlearning.defense.registry import defense_names, defense_options
from warp_unlearning.methods.base import options
from warp_unlearning.methods.registry import method_classes
from warp_unlearning.symmetry.base import symmetry_names, symmetry_options

Warp = Callable[..., Any]


def test_every_method_and_option_is_listed(warp: Warp) -> None:
    lines = warp("methods").ok().out.splitlines()
    for name, cls in method_classes().items():
        start = lines.index(name)
        for offset, option in enumerate(options(cls), start + 2):
            assert lines[offset].startswith(f"    {option.name} = {option.default!r}")
            assert lines[offset].endswith(option.help)
            assert option.help
    assert warp("methods", "--json").json().keys() == method_classes().keys()
    text = warp("methods", "ngp").out
    assert text.startswith("ngp\n  Minimises")
    assert "salun" not in text
    found = {o["name"]: o for o in warp("methods", "ngp", "--json").json()["ngp"]["options"]}
    assert found["lr"] == {"name": "lr", "type": "float", "default": 0.01, "help": "learning rate at the start"}


@pytest.mark.parametrize("more", [(), ("--check",), ("--json",)])
def test_an_unknown_method_is_answered_with_the_nearest(warp: Warp, more: tuple[str, ...]) -> None:
    warp("methods", "salum", *more).refused("unknown method 'salum'; did you mean 'salun'?")
    warp("methods", "--check").refused("--check needs a method, as in `warp methods ngp --check`")


BROKEN = """
from dataclasses import dataclass
import torch
from warp_unlearning.training.update import Update
@dataclass(frozen=True)
class Broken:
    name = "broken"
    norm_mode = "eval"
    forgets = False
    def updates(self, model, task):
        task.original.requires_grad_(True)
        for p in task.original.parameters():
            p.data.zero_()
        yield Update(step=1, total=1, epoch=0, ends_epoch=True, losses={"loss": torch.zeros(())})
"""


def test_a_method_of_ones_own_is_checked(warp: Warp, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(BROKEN)
    answer = warp("methods", f"{tmp_path / 'own.py'}:Broken", "--check")
    assert answer.code == 1
    assert "broken  " in answer.out
    assert "kept    " in answer.out
    found = warp("methods", f"{tmp_path / 'own.py'}:Broken", "--check", "--json").json()
    assert any(finding["broken"] for finding in found["findings"])


def test_defences_and_their_symmetries_are_listed(warp: Warp) -> None:
    lines = warp("defenses").out.splitlines()
    for name in defense_names():
        about = defense_options(name)
        start = lines.index(name)
        assert lines[start + 1].strip() == about.about
        assert f"  along {about.symmetry}:" in lines[start:]
        for option in (*about.options, *about.symmetry_options):
            assert option.help
    for name in symmetry_names():
        shown = warp("defenses", name).out
        assert all(f"    {option.name} = " in shown for option in symmetry_options(name))
    assert "did you mean 'warp'" in warp("defenses", "wrap").err


@pytest.mark.parametrize("command", list(SCHEMAS))
def test_every_setting_is_explained(warp: Warp, command: str) -> None:
    every = describe_keys(SCHEMAS[command])
    lines = warp("config", "--for", command).out.splitlines()
    assert [line.partition(" = ")[0] for line in lines] == [one[0] for one in every]
    assert all(len(one[3].split()) >= 2 for one in every)


def test_a_section_or_a_key_of_the_configuration(warp: Warp) -> None:
    lines = warp("config", "training").out.splitlines()
    assert len(lines) > 5
    assert all(line.startswith("training.") for line in lines)
    (line,) = warp("config", "training.lr").out.splitlines()
    assert line.startswith("training.lr = 0.05")
    assert warp("config", "seed", "--json").json()["seed"]["default"] == 0
    assert "did you mean 'training.lr'" in warp("config", "training.lrr").err
    assert "did you mean 'shadow'" in warp("config", "--for", "shadows").err
