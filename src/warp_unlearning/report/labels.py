"""Names of methods and defences as people write them; a name that is not known here is shown as it is."""

from __future__ import annotations

from collections.abc import Mapping

from .shadow_arm import Arm

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
