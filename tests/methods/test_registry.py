from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from warp_unlearning.errors import InputError
from warp_unlearning.methods import registry
from warp_unlearning.methods.finetune import Finetune
from warp_unlearning.methods.neg_grad_plus import NegGradPlus
from warp_unlearning.methods.registry import as_method, make_method, method_classes

NAMES = {"ngp", "scrub", "salun", "pgu", "bad_teacher", "srf_on", "retrain", "finetune", "langevin"}


def plug_in(monkeypatch: pytest.MonkeyPatch, *points: tuple[str, str]) -> None:
    def entry_points(*, group: str) -> list[EntryPoint]:
        assert group == "warp_unlearning.methods"
        return [EntryPoint(name, value, group) for name, value in points]

    monkeypatch.setattr(registry, "entry_points", entry_points)


def test_the_methods_of_this_package_are_known() -> None:
    assert set(method_classes()) >= NAMES
    assert all(method_classes()[name].name == name for name in NAMES)


def test_a_method_is_made_with_its_settings() -> None:
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
    plug_in(monkeypatch, ("theirs", "warp_unlearning.methods.finetune:Finetune"))
    assert method_classes()["theirs"] is Finetune
    assert make_method("theirs", epochs=2) == Finetune(epochs=2)


@pytest.mark.parametrize(
    "points",
    [
        [("ngp", "their.package:Method")],
        [("a", "warp_unlearning.methods.finetune:Finetune"), ("a", "their.package:Method")],
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


@pytest.mark.parametrize("wrong", [3, None, object(), NegGradPlus, lambda: None])
def test_anything_else_is_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match="give a name"):
        as_method(wrong)
