"""Words of a report: names of methods and defences as people write them, numbers with their intervals, plain text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from ..stats.intervals import Estimate
from .schema import Rate
from .schema_shadow import Arm

NOT_MEASURED = "not measured"
Pairs = tuple[tuple[str, str], ...]
"""Names with texts, in the order of a file."""

# Control characters are not allowed in XML, lone surrogates not in UTF-8, and bidirectional controls reorder what
# surrounds them.
_UNSHOWABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")

_METHODS = {
    "ngp": "NGP",
    "scrub": "SCRUB",
    "pgu": "PGU",
    "salun": "SalUn",
    "srf_on": "SF",
    "bad_teacher": "BT",
    "retrain": "retraining",
    "finetune": "fine-tuning",
    "langevin": "Langevin noise",
    "srf_on_strict": "SF strict",
}
DEFENSES = {
    "warp": "WARP",
    "fastwarp": "FastWARP",
    "warp_guarded": "WARP guarded",
    "cob": "change of basis",
    "conjugate": "conjugate",
}
_STUDIED = {"kick": "random kick", "warp_published": "WARP as published", "fastwarp_guarded": "FastWARP guarded"}
OLD = " (0.1)"
"""Ends the names of what an earlier version of the program measured with another algorithm."""
NO_DEFENSE = "no defence"
LONGEST = 34


def method_label(name: str) -> str:
    """The method's usual name.

    >>> method_label("srf_on_strict (0.1)")
    'SF strict (0.1)'
    """
    return _labelled(_METHODS, name)


def defense_label(name: str | None) -> str:
    """The defence's usual name; "no defence" for None."""
    return NO_DEFENSE if name is None else _labelled(DEFENSES | _STUDIED, name)


def _labelled(known: Mapping[str, str], name: str) -> str:
    base = name.removesuffix(OLD)
    return known.get(base, base) + name[len(base) :]


def arm_label(arm: Arm) -> str:
    """The method and its defence.

    The arm's own name is not used: it may repeat, and the pair says the same.
    """
    return f"{method_label(arm.method)} with {defense_label(arm.defense)}"


def brief(text: str, length: int = LONGEST) -> str:
    """The text on one line, cut where a figure has no room for more.

    >>> brief("abcdef", 4)
    'abc…'
    """
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 1]}…"


def listed(names: list[str]) -> str:
    """Names with commas and an "and".

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "none"


def counted(number: int, one: str, many: str = "") -> str:
    """A number with its noun.

    >>> counted(1, "job"), counted(1200, "job")
    ('1 job', '1,200 jobs')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def showable(text: str) -> str:
    """The text with whatever cannot be printed, or would reorder its surroundings, replaced by U+FFFD.

    >>> showable("a\\x1bb")
    'a\ufffdb'
    """
    return _UNSHOWABLE.sub("\ufffd", text)


def flat(value: Mapping[str, Any]) -> Pairs:
    """Nested plain data as (dotted name, text) pairs, in order.

    >>> flat({"a": {"b": [1, 2.5], "c": None}})
    (('a.b', '1, 2.5'), ('a.c', '(none)'))
    """
    return tuple(pair for key, inner in value.items() for pair in _flat(inner, key))


def _flat(value: Any, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}")
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping | list | tuple) for item in value):
        for i, item in enumerate(value):
            yield from _flat(item, f"{name}[{i}]")
    else:
        yield name, _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(_scalar(item) for item in value) or "(none)"
    if value is None or value == {}:
        return "(none)"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Written:
    """A number as text, and its interval as text; either may be empty."""

    value: str
    interval: str = ""

    def __str__(self) -> str:
        return f"{self.value} {self.interval}".strip()


def written(estimate: Estimate | None, *, digits: int = 3, scale: float = 1.0, unit: str = "") -> Written:
    """A number with its interval; what is unknown is said in words.

    >>> str(written(Estimate(0.5, 0.4, 0.61), scale=100, digits=0, unit=" %"))
    '50 % [40, 61]'
    """
    if estimate is None:
        return Written(NOT_MEASURED)
    value = f"{_fixed(scale * estimate.value, digits)}{unit}"
    ends = (estimate.low, estimate.high)
    if not any(map(isfinite, ends)):
        return Written(value, "[interval unknown]")
    texts = (_fixed(scale * end, digits) if isfinite(end) else "unbounded" for end in ends)
    return Written(value, f"[{', '.join(texts)}]")


def written_rate(rate: Rate | None) -> Written:
    """A rate in percent with its interval, or "unresolved" with how many negatives there are."""
    if rate is None:
        return Written(NOT_MEASURED)
    if not rate.resolved:
        return Written("unresolved", f"({rate.negatives:,} negatives)")
    return written(rate.tpr, digits=1, scale=100, unit=" %")


def _fixed(number: float, digits: int) -> str:
    text = f"{number:,.{digits}f}"
    return (text[1:] if float(text.replace(",", "")) == 0 and text.startswith("-") else text).replace("-", "−")
