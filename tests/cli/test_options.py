"""Options that commands share, and how they become settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warp_unlearning.cli.options import Options, assign
from warp_unlearning.config import ShadowConfig, resolve, resolve_as

Warp = Callable[..., Any]
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/"), min_size=1).filter(
    lambda name: Path(name).name == name
)
SHARING = (["check"], ["train"], ["unlearn"], ["compare"], ["teleport"], ["bounds"], ["reconstruct"], ["audit", "pair"])


def test_flags_come_behind_overrides_and_only_if_given() -> None:
    assert assign(["seed=1"], seed=2, device=None, training__epochs=3) == ["seed=1", "seed=2", "training.epochs=3"]
    assert assign(None) == []
    assert assign(None, seed=0) == ["seed=0"]


@given(NAMES, st.lists(NAMES), st.floats(1e-30, 0.999))
def test_paths_names_and_numbers_arrive_as_they_were_given(name: str, names: list[str], number: float) -> None:
    config = resolve(overrides=assign(None, data__path=Path(name), forget__fraction=number))
    assert (config.data.path, config.forget.fraction) == (Path(name), number)
    assert resolve_as(ShadowConfig, overrides=assign(None, defenses=names)).defenses == names


def test_all_options_become_settings() -> None:
    options = Options(
        model="own.py:build", data="x.npz", test=Path("t.npz"), ids="name", classes="cat, dog", scale=255.0,
        mean="0.5,0.25", std="2", dtype="float64", seed=3, device="cpu", threads=2,
    )  # fmt: skip
    config = resolve(overrides=options.settings(forget__label="cat"))
    data = config.data
    assert (config.model.name, data.name, data.path, data.test) == ("custom", None, Path("x.npz"), Path("t.npz"))
    assert (data.ids, data.classes, data.scale, data.mean, data.std) == ("name", ["cat", "dog"], 255, [0.5, 0.25], [2])
    assert (config.dtype, config.seed, config.device, config.threads) == ("float64", 3, "cpu", 2)
    assert config.forget.label == "cat"
    assert resolve(overrides=Options(data="digits").settings()).data.name == "digits"
    assert resolve(overrides=Options(data="d", kind="folder").settings()).data.name == "folder"


@pytest.mark.parametrize("command", SHARING, ids=" ".join)
def test_every_command_that_reads_data_takes_them(warp: Warp, command: list[str]) -> None:
    help_text = warp(*command, "--help").out
    assert all(f"--{field.name} " in help_text for field in fields(Options))
    assert "--json " in help_text
