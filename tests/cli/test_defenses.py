from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from warp_unlearning.defense.registry import defense_names, defense_options

Warp = Callable[..., Any]


def test_every_defence_and_option_is_listed(warp: Warp) -> None:
    answer = warp("defenses")
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    for name in defense_names():
        about, at = defense_options(name), lines.index(name)
        assert lines[at + 1] == f"  {about.about}"
        at += 2
        for option in about.options:
            assert lines[at].startswith(f"    {option.name} = {option.default!r}")
            assert lines[at].endswith(f" {option.help}")
            at += 1
        assert lines[at] == f"  along {about.symmetry}:"
        for offset, option in enumerate(about.symmetry_options, at + 1):
            assert lines[offset].startswith(f"    {option.name} = {option.default!r}")
            assert lines[offset].endswith(f" {option.help}")


def test_one_defence_as_text_and_json(warp: Warp) -> None:
    text = warp("defenses", "conjugate").out
    assert text.startswith("conjugate\n  ")
    assert "fastwarp" not in text
    data = json.loads(warp("defenses", "cob", "--json").out)
    assert list(data) == ["cob"]
    found = {option["name"]: option for option in data["cob"]["options"]}
    assert found["every"]["default"] == "end"
    assert data["cob"]["symmetry"] == "change_of_basis"
    assert {option["name"] for option in data["cob"]["symmetry_options"]} == {"spread", "law", "through_norm"}
    assert set(json.loads(warp("defenses", "--json").out)) == set(defense_names())


def test_an_unknown_defence_is_answered_with_the_nearest(warp: Warp) -> None:
    answer = warp("defenses", "wrap")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: unknown defence 'wrap'; did you mean 'warp'?")
