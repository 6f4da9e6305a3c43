"""The key of a result: the digest of everything that decides it.

Canonical JSON: object keys sorted, no spaces, floats by their shortest repr, no NaN or infinity, UTF-8. So 1, 1.0, True
and "1" differ, a tuple equals the list of its items, and the order of an object's keys does not count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from math import isfinite
from typing import Any

from ..errors import InputError

KIND = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_FORMAT = "warp key 1"


@dataclass(frozen=True, init=False)
class Key:
    """What decides a result: the kind of job, the version of that kind, and its ingredients.

    Ingredients are plain data: None, bool, int, finite float, str, lists or tuples of them, and dicts with text keys.
    They are copied, so a change of them afterwards does not change the key.

    >>> a = Key("train", 1, {"seed": 3, "recipe": {"lr": 0.1, "epochs": 5}})
    >>> b = Key("train", 1, {"recipe": {"epochs": 5, "lr": 0.1}, "seed": 3})
    >>> a == b, a.digest == b.digest, a == Key("train", 1, {"seed": 3.0, "recipe": {"lr": 0.1, "epochs": 5}})
    (True, True, False)
    """

    kind: str
    version: int
    text: str

    def __init__(self, kind: str, version: int, ingredients: Mapping[str, Any]) -> None:
        if type(kind) is not str or not KIND.fullmatch(kind):
            raise InputError(f"the kind of a job is {kind!r}; use small letters, digits, _ and -, a letter first")
        if type(version) is not int or version < 1:
            raise InputError(f"the version of the kind {kind!r} is {version!r}; use a whole number from 1 on")
        if not isinstance(ingredients, Mapping):
            raise InputError(f"the ingredients of a {kind!r} key are a {type(ingredients).__name__}; use a dict")
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "version", version)
        object.__setattr__(self, "text", canonical_json(dict(ingredients)))

    @property
    def ingredients(self) -> dict[str, Any]:
        """A copy of the ingredients, tuples as lists."""
        return dict(json.loads(self.text))

    @cached_property
    def digest(self) -> str:
        """64 hexadecimal digits, the same on every machine."""
        return sha256(f'["{_FORMAT}","{self.kind}",{self.version},{self.text}]'.encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.kind} {self.digest[:12]}"


def canonical_json(data: Any) -> str:
    """The one text for `data`; raises `InputError` where it is not plain data.

    >>> canonical_json({"b": (1, 1.0, True), "a": None})
    '{"a":null,"b":[1,1.0,true]}'
    """
    try:
        _check(data, "ingredients")
        text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"a text among the ingredients has half of a surrogate pair: {error}; repair it") from error
    except (RecursionError, ValueError) as error:
        raise InputError(
            f"the ingredients of a key cannot be written as JSON: {error}; make them plain data"
        ) from error
    return text


def _check(data: Any, where: str) -> None:
    # Exact types: a subclass may print as something else than it is, and a numpy scalar as something else than it was.
    if data is None or type(data) in (bool, int, str):
        return
    if type(data) is float:
        if not isfinite(data):
            raise InputError(f"{where} is {data}; a key holds finite numbers only")
    elif isinstance(data, list | tuple):
        for i, item in enumerate(data):
            _check(item, f"{where}[{i}]")
    elif isinstance(data, dict):
        for name, item in data.items():
            if type(name) is not str:
                raise InputError(f"{where} has the key {name!r}, a {type(name).__name__}; make it text")
            _check(item, f"{where}.{name}")
    else:
        raise InputError(
            f"{where} is a {type(data).__name__}; a key holds None, bool, int, float, str, lists and dicts: convert it"
        )
