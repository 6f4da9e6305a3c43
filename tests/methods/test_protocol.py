from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from warp_unlearning.errors import InputError
from warp_unlearning.methods.protocol import Method, Option, Task, option, options, require
from warp_unlearning.methods.registry import BUILT_IN, make_method


@dataclass
class Settings:
    name = "made_up"
    rate: Any = 0.5
    share: Any = 0.5
    count: Any = 3
    kind: Any = "red"


def check(**changes: Any) -> None:
    require(
        Settings(**changes), positive=("rate",), shares=("share",), counts=("count",), choices={"kind": ("red", "blue")}
    )


@pytest.mark.parametrize(
    "changes",
    [{}, {"rate": 1e-9}, {"rate": 7}, {"share": 0}, {"share": 1.0}, {"count": 1}, {"kind": "blue"}, {"rate": None}],
    ids=str,
)
def test_usable_settings_pass(changes: dict[str, Any]) -> None:
    check(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rate": 0}, "made_up: rate is 0; it must be above 0"),
        ({"rate": -1.5}, "made_up: rate is -1.5; it must be above 0"),
        ({"rate": float("nan")}, "rate is nan"),
        ({"rate": "0.1"}, "rate is '0.1'; it must be a number"),
        ({"rate": True}, "rate is True; it must be a number"),
        ({"share": -0.1}, "share is -0.1; it must lie between 0 and 1"),
        ({"share": 1.1}, "share is 1.1"),
        ({"share": float("nan")}, "share is nan"),
        ({"count": 0}, "count is 0; it must be a whole number of at least 1"),
        ({"count": 2.5}, "count is 2.5"),
        ({"count": 3.0}, "count is 3.0"),
        ({"count": float("inf")}, "count is inf"),
        ({"kind": "bleu"}, "kind is 'bleu'; did you mean 'blue'"),
        ({"kind": None}, "kind is None"),
    ],
    ids=str,
)
def test_unusable_settings_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        check(**changes)
    assert message in str(caught.value)


COUNTS = (
    "epochs",
    "batch_size",
    "iterations",
    "forget_every",
    "samples",
    "max_epochs",
    "retain_batch_size",
    "forget_batch_size",
)
POSITIVE = (
    "lr",
    "last_lr",
    "temperature",
    "clip",
    "max_norm",
    "strength",
    "ratio",
    "energy",
    "keep",
    "offset",
    "retain_share",
    "epsilon",
    "delta",
    "radius",
)
SHARES = ("momentum", "keep", "energy", "retain_share", "offset")
CHOICES = ("optimizer", "norm_mode", "rule", "fisher")


def wrong_settings() -> list[tuple[str, str, Any]]:
    found: list[tuple[str, str, Any]] = []
    for name, method in BUILT_IN.items():
        for o in options(method):
            found += [(name, o.name, value) for value in (0, -3, 1.5)] if o.name in COUNTS else []
            found += [(name, o.name, value) for value in (0.0, -0.1, "1")] if o.name in POSITIVE else []
            found += [(name, o.name, value) for value in (1.01, -0.01)] if o.name in SHARES else []
            found += [(name, o.name, "nonsense")] if o.name in CHOICES else []
    return [*found, ("ngp", "alpha", 1.5), ("langevin", "alpha", -0.5)]


@pytest.mark.parametrize(("method", "key", "value"), wrong_settings())
def test_every_method_refuses_settings_it_cannot_use(method: str, key: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{method}: {key} is"):
        make_method(method, **{key: value})


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
        kit.task(task.original, validation=None).require_validation("rewinding")
