"""The options of a class as its constructor declares them: names, kinds, defaults, and a check of what is given.

Values may come from a command line or a file, so their types are checked before a constructor compares them.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ..errors import InputError

_KINDS: Mapping[Any, str] = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    str: "text",
    NoneType: "null",
}


@dataclass(frozen=True)
class Option:
    """A setting: its name, what it may be, its default, and a sentence on what it does."""

    name: str
    type: str
    default: object
    help: str


def options_of(cls: type, about: Mapping[str, str], *, defaults: Mapping[str, Any] | None = None) -> tuple[Option, ...]:
    """The keyword-only options of a class in the order they are declared, with `defaults` over its own.

    `about` holds the sentences; an option without one has none.
    """
    hints, given = _hints(cls), defaults or {}
    return tuple(
        Option(name, _described(hints[name]), given.get(name, p.default), about.get(name, ""))
        for name, p in inspect.signature(cls).parameters.items()
        if p.kind is p.KEYWORD_ONLY
    )


def check_options(owner: str, cls: type, given: Mapping[str, Any]) -> None:
    """Raise where a value is not of the type that the class declares for the option; `owner` names it in the error."""
    hints = _hints(cls)
    for name, value in given.items():
        if not _fits(value, hints[name]):
            raise InputError(f"{owner}: {name} is {value!r}; it must be {_described(hints[name])}")


def _hints(cls: type) -> dict[str, Any]:
    # A dataclass that inherits fields names types its own module may not know.
    if is_dataclass(cls):
        return get_type_hints(cls)
    return {name: p.annotation for name, p in inspect.signature(cls, eval_str=True).parameters.items()}


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, member) for member in get_args(hint))
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, int | float if hint is float else hint)


def _described(hint: Any) -> str:
    """What a type allows, in words: "'epoch', 'end', a whole number or null"."""
    words: list[str] = []
    for member in _members(hint):
        words += map(repr, get_args(member)) if get_origin(member) is Literal else [_KINDS.get(member, str(member))]
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
