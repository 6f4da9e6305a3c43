from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from warp_unlearning.errors import InputError
from warp_unlearning.methods import registry
from warp_unlearning.methods.base import Method, Option, Task, option, options
from warp_unlearning.methods.neg_grad_plus import NegGradPlus
from warp_unlearning.methods.references import Finetune
from warp_unlearning.methods.registry import (
    BUILT_IN,
    SMALL_DATA,
    as_method,
    make_method,
    method_classes,
    small_data_method,
)

NAMES = {"ngp", "scrub", "salun", "pgu", "bad_teacher", "srf_on", "retrain", "finetune", "langevin"}


def plug_in(monkeypatch: pytest.MonkeyPatch, *points: tuple[str, str]) -> None:
    def entry_points(*, group: str) -> list[EntryPoint]:
        assert group == "warp_unlearning.methods"
        return [EntryPoint(name, value, group) for name, value in points]

    monkeypatch.setattr(registry, "entry_points", entry_points)


def test_a_method_is_made_with_its_settings() -> None:
    assert set(method_classes()) >= NAMES
    assert make_method("ngp", alpha=0.5, epochs=2) == NegGradPlus(alpha=0.5, epochs=2)
    assert make_method("finetune") == Finetune()


def test_unknown_names_and_settings_name_the_nearest() -> None:
    with pytest.raises(InputError, match=r"unknown method 'salum'; did you mean 'salun'\? Known: bad_teacher, "):
        make_method("salum")
    with pytest.raises(InputError, match=r"ngp has no option 'alhpa'; did you mean 'alpha'\?"):
        make_method("ngp", alhpa=0.5)
    with pytest.raises(InputError, match="has no option 'name'"):
        make_method("ngp", name="other")


def test_plug_ins_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch, ("theirs", "warp_unlearning.methods.references:Finetune"))
    assert method_classes()["theirs"] is Finetune
    assert make_method("theirs", epochs=2) == Finetune(epochs=2)


@pytest.mark.parametrize(
    "points",
    [
        [("ngp", "their.package:Method")],
        [("a", "warp_unlearning.methods.references:Finetune"), ("a", "their.package:Method")],
    ],
    ids=["built in", "other plug-in"],
)
def test_a_plug_in_may_not_take_a_name(monkeypatch: pytest.MonkeyPatch, points: Any) -> None:
    plug_in(monkeypatch, *points)
    with pytest.raises(InputError, match=r"'their\.package:Method' registers the method '(ngp|a)', which exists"):
        method_classes()


def test_a_method_may_be_given_by_name_or_as_an_object() -> None:
    assert as_method("ngp") == NegGradPlus()
    method = NegGradPlus(alpha=0.1)
    assert as_method(method) is method
    for wrong in (3, None, object(), NegGradPlus, lambda: None):
        with pytest.raises(InputError, match="give a name"):
            as_method(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", list(BUILT_IN))
def test_every_setting_for_small_data_is_an_option_and_arrives(name: str) -> None:
    method = small_data_method(name)
    assert type(method) is BUILT_IN[name]
    for key, value in SMALL_DATA.get(name, {}).items():
        assert getattr(method, key) == value
        assert getattr(BUILT_IN[name](), key) != value
    assert small_data_method("ngp", alpha=0.3, lr=0.5) == NegGradPlus(alpha=0.3, lr=0.5, batch_size=64)
    assert set(SMALL_DATA) <= set(BUILT_IN)


COUNTS = "epochs batch_size iterations forget_every samples max_epochs retain_batch_size forget_batch_size"
POSITIVE = "lr last_lr temperature clip max_norm strength ratio epsilon delta radius energy keep offset retain_share"
WRONG: list[tuple[Any, str]] = [
    *((value, COUNTS) for value in (0, -3, 1.5, float("inf"))),
    *((value, POSITIVE) for value in (0.0, -0.1, "1", True, float("nan"))),
    *((value, "momentum keep energy retain_share offset") for value in (1.01, -0.01)),
    ("nonsense", "optimizer norm_mode rule fisher"),
]


@pytest.mark.parametrize("name", list(BUILT_IN))
def test_every_method_refuses_settings_it_cannot_use(name: str) -> None:
    own = {o.name for o in options(BUILT_IN[name])}
    wrong = [(key, value) for value, keys in WRONG for key in keys.split() if key in own]
    wrong += [("alpha", value) for value in (1.5, -0.5) if name in ("ngp", "langevin")]
    assert wrong
    for key, value in wrong:
        with pytest.raises(InputError, match=f"{name}: {key} is .*; (it must|did you mean|Known)"):
            make_method(name, **{key: value})


@pytest.mark.parametrize("name", list(BUILT_IN))
def test_every_method_is_one_and_explains_its_options(name: str) -> None:
    method = make_method(name)
    assert isinstance(method, Method)
    assert method.name == name
    assert method.norm_mode in ("train", "eval")
    assert options(type(method))
    assert all(o.help and o.default == getattr(method, o.name) for o in options(type(method)))


def test_options_are_listed_in_order() -> None:
    @dataclass(frozen=True)
    class Two:
        first: int = option(3, "the first")
        second: str = option("x", "the second")

    assert options(Two) == [Option("first", "int", 3, "the first"), Option("second", "str", "x", "the second")]  # type: ignore[arg-type]


def test_a_task_says_what_needs_a_validation_set(kit: Any, task: Task) -> None:
    assert task.require_validation("rewinding") is task.validation
    with pytest.raises(InputError, match="rewinding needs a validation set"):
        kit.task_of(task.original, validation=None).require_validation("rewinding")
