"""Typed reading of plain data from a file: every error names the file, the place in it, and what was found there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, NoReturn, TypeVar

from ..errors import DataError

T = TypeVar("T")
Pairs = tuple[tuple[str, str], ...]
"""Names with texts, in the order of a file."""

# Control characters are not allowed in XML, lone surrogates not in UTF-8, and bidirectional controls reorder what
# surrounds them.
_UNSHOWABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def showable(text: str) -> str:
    """The text with whatever cannot be printed, or would reorder its surroundings, replaced by U+FFFD.

    >>> showable("a\\x1bb")
    'a\ufffdb'
    """
    return _UNSHOWABLE.sub("\ufffd", text)


@dataclass(frozen=True)
class Field:
    """A value with its place in a file; the methods return it as what they are named for, or raise DataError."""

    value: Any
    file: str
    place: str = ""

    def wrong(self, needed: str) -> NoReturn:
        """Raise the error that `needed` should be here."""
        where = self.place or "the whole of it"
        raise DataError(
            f"{self.file}: {where} is {_described(self.value)}; {needed} is needed: the file is damaged or another "
            "program wrote it, so make the audit again"
        )

    def mapping(self) -> Mapping[str, Any]:
        """An object."""
        if not isinstance(self.value, dict):
            self.wrong("an object")
        return self.value

    def __getitem__(self, key: str) -> Field:
        found = self.mapping()
        if key not in found:
            where = f"{self.place} has" if self.place else "it has"
            raise DataError(
                f"{self.file}: {where} no field {key!r}; the file is damaged or another program wrote it, so make the "
                "audit again"
            )
        return Field(found[key], self.file, f"{self.place}.{key}" if self.place else key)

    def __contains__(self, key: str) -> bool:
        return key in self.mapping()

    def __iter__(self) -> Iterator[Field]:
        if not isinstance(self.value, list):
            self.wrong("a list")
        for i, item in enumerate(self.value):
            yield Field(item, self.file, f"{self.place}[{i}]")

    def items(self) -> Iterator[tuple[str, Field]]:
        """The fields of an object by name; names are made showable."""
        for key in self.mapping():
            yield showable(key), self[key]

    def text(self) -> str:
        """Text, made showable."""
        if not isinstance(self.value, str):
            self.wrong("text")
        return showable(self.value)

    def texts(self) -> tuple[str, ...]:
        """A list of texts."""
        return tuple(item.text() for item in self)

    def flag(self) -> bool:
        """True or false."""
        if not isinstance(self.value, bool):
            self.wrong("true or false")
        return self.value

    def count(self) -> int:
        """A whole number, 0 or more."""
        if isinstance(self.value, bool) or not isinstance(self.value, int) or self.value < 0:
            self.wrong("a whole number, 0 or more,")
        return self.value

    def number(self) -> float:
        """A finite number."""
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            self.wrong("a number")
        try:
            found = float(self.value)
        except OverflowError:
            self.wrong("a finite number")
        if not isfinite(found):
            self.wrong("a finite number")
        return found

    def maybe(self, read: Callable[[Field], T]) -> T | None:
        """None where the file has null, else what `read` makes of this field."""
        return None if self.value is None else read(self)

    def maybe_number(self) -> float | None:
        """A finite number or None."""
        return self.maybe(Field.number)

    def numbers(self) -> tuple[float, ...]:
        """A list of finite numbers."""
        return tuple(item.number() for item in self)

    def one_of(self, *known: str) -> str:
        """One of these texts."""
        if self.value not in known:
            self.wrong(" or ".join(repr(name) for name in known))
        return str(self.value)

    def scalars(self) -> Pairs:
        """Nested plain data as (dotted name, text) pairs, in the order of the file."""
        return tuple(_flat(self.value, self.place.rpartition(".")[2], top=True))

    def pairs(self) -> Pairs:
        """`scalars` of what must be an object."""
        self.mapping()
        return self.scalars()


def _flat(value: Any, name: str, *, top: bool = False) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(inner, showable(key) if top else f"{name}.{showable(key)}")
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        for i, item in enumerate(value):
            yield from _flat(item, f"{name}[{i}]")
    elif not (top and value == {}):
        yield name, _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_scalar(item) for item in value) or "(none)"
    if value is None or value == {}:
        return "(none)"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else showable(str(value))


def _described(value: Any) -> str:
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    if value is None:
        return "null"
    shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:60]}..."
    return showable(shown)
