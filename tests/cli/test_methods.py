from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from warp_unlearning import conformance
from warp_unlearning.conformance.kit import Finding, Report
from warp_unlearning.methods.protocol import options
from warp_unlearning.methods.registry import method_classes

Warp = Callable[..., Any]


def test_every_method_and_option_is_listed(warp: Warp) -> None:
    answer = warp("methods")
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    for name, cls in method_classes().items():
        start = lines.index(name)
        for offset, option in enumerate(options(cls), start + 2):
            assert lines[offset].startswith(f"    {option.name} = {option.default!r}")
            assert lines[offset].endswith(option.help)
            assert option.help


def test_one_method_as_text_and_json(warp: Warp) -> None:
    text = warp("methods", "ngp").out
    assert text.startswith("ngp\n  Minimises")
    assert "salun" not in text
    data = json.loads(warp("methods", "ngp", "--json").out)
    assert list(data) == ["ngp"]
    found = {o["name"]: o for o in data["ngp"]["options"]}
    assert found["lr"] == {
        "name": "lr",
        "type": "float",
        "default": 0.01,
        "help": "learning rate at the start",
    }
    assert set(json.loads(warp("methods", "--json").out)) == set(method_classes())


@pytest.mark.parametrize("more", [(), ("--check",), ("--json",)])
def test_an_unknown_method_is_answered_with_the_nearest(warp: Warp, more: tuple[str, ...]) -> None:
    answer = warp("methods", "salum", *more)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: unknown method 'salum'; did you mean 'salun'?")


def test_a_check_needs_a_method(warp: Warp) -> None:
    answer = warp("methods", "--check")
    assert (answer.code, answer.out) == (2, "")
    assert "--check needs the name of a method, as in `warp methods ngp --check`" in answer.err


def test_a_check_shows_each_rule_and_its_exit_code(warp: Warp, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def check(broken: str | None) -> None:
        def run(method: Any, **given: Any) -> Any:
            asked.append((method.name, given["forgetting_seeds"]))
            return Report(method.name, (Finding("first rule", None), Finding("second rule", broken)))

        monkeypatch.setattr(conformance, "check_method", run)

    check(None)
    good = warp("methods", "ngp", "--check")
    assert (good.code, good.out) == (0, "kept    first rule\nkept    second rule\n")
    check("it broke")
    bad = warp("methods", "finetune", "--check")
    assert (bad.code, bad.out) == (1, "kept    first rule\nbroken  second rule  it broke\n")
    assert "second rule" in bad.err
    data = json.loads(warp("methods", "ngp", "--check", "--json").out)
    assert data == [{"rule": "first rule", "broken": None}, {"rule": "second rule", "broken": "it broke"}]
    # A reference that does not aim at forgetting is not asked to.
    assert asked[0][1] == (0, 1, 2)
    assert asked[1] == ("finetune", ())
