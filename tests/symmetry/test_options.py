from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from warp_unlearning.errors import InputError
from warp_unlearning.symmetry.base import Option, check_options, options_of

Colour = Literal["red", "green"]


class Plain:
    def __init__(self, first: int = 1, *, width: float = 0.5, colour: Colour = "red", often: bool = True) -> None:
        self.given = first, width, colour, often


@dataclass(kw_only=True)
class Fields:
    width: float = 2.0
    count: int = 3
    when: Colour | int | None = "red"
    _kept: list[int] = field(init=False, default_factory=list)


class Nothing:
    pass


def test_options_are_the_keyword_only_ones_in_their_order() -> None:
    assert options_of(Plain, {"width": "how wide"}) == (
        Option("width", "a number", 0.5, "how wide"),
        Option("colour", "'red' or 'green'", "red", ""),
        Option("often", "true or false", True, ""),
    )
    assert [(o.name, o.type, o.default) for o in options_of(Fields, {})] == [
        ("width", "a number", 2.0),
        ("count", "a whole number", 3),
        ("when", "'red', 'green', a whole number or null", "red"),
    ]
    assert options_of(Nothing, {}) == ()


def test_given_defaults_go_over_those_of_the_class() -> None:
    found = {o.name: o.default for o in options_of(Fields, {}, defaults={"count": 7, "when": None})}
    assert found == {"width": 2.0, "count": 7, "when": None}


def test_types_of_inherited_fields_are_those_of_the_module_that_declares_them() -> None:
    """`Rule` is a name that the module of the subclass does not know."""
    from warp_unlearning.symmetry.null_space import TrackedNullSpace

    types = {o.name: o.type for o in options_of(TrackedNullSpace, {})}
    assert types["rule"] == "'energy' or 'singular_values'"
    assert types["rounds"] == "a whole number"


@pytest.mark.parametrize(
    "given",
    [
        {"width": 1},
        {"width": 1.5},
        {"colour": "green"},
        {"often": False},
        {},
    ],
)
def test_values_of_the_declared_types_pass(given: dict[str, Any]) -> None:
    check_options("it", Plain, given)


@pytest.mark.parametrize("value", ["red", 4, None])
def test_each_member_of_a_union_passes(value: object) -> None:
    check_options("it", Fields, {"when": value})


@pytest.mark.parametrize(
    ("cls", "name", "value", "message"),
    [
        (Plain, "width", "wide", "it: width is 'wide'; it must be a number"),
        (Plain, "width", True, "it: width is True; it must be a number"),
        (Plain, "width", None, "it: width is None; it must be a number"),
        (Plain, "width", [1], r"it: width is \[1\]; it must be a number"),
        (Plain, "colour", "blue", "it: colour is 'blue'; it must be 'red' or 'green'"),
        (Plain, "colour", ["red"], r"it: colour is \['red'\]; it must be 'red' or 'green'"),
        (Plain, "often", 1, "it: often is 1; it must be true or false"),
        (Plain, "often", "yes", "it: often is 'yes'; it must be true or false"),
        (Fields, "count", 1.0, "it: count is 1.0; it must be a whole number"),
        (Fields, "count", True, "it: count is True; it must be a whole number"),
        (Fields, "when", False, "it: when is False; it must be 'red', 'green', a whole number or null"),
        (Fields, "when", 0.5, "it: when is 0.5; it must be 'red', 'green', a whole number or null"),
    ],
)
def test_values_of_other_types_are_named(cls: type, name: str, value: object, message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}$"):
        check_options("it", cls, {name: value})
