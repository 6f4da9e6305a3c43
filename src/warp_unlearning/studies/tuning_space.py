"""What a search may set, and between which values: ranges by method and by defence, and how they are changed.

| setting | range |
|---|---|
| learning rates, weight decay | 1e-5 to 1e-1, uniform in the logarithm |
| epochs | 1 to a fifth of those of the training, rounded up |
| batch sizes | 64, 128, 256 |
| weights and shares | 0 to 1; from 0.01 on where 0 is no value |
| temperatures | 0.1 to 5 |
| length of a teleport's step | 0.005 to 0.5 of the weights, uniform in the logarithm |
| pull of a teleport away from the original | 0.01 to 1, uniform in the logarithm |
| energy that a null space leaves | 0.95 to 0.999 |

Momentum stays at the method's own. Where these do not hold what a method is known to need, its own range does: pgu
takes learning rates up to 1, since little of a projected step is left, and five times as many passes, since one is over
the forget set alone; srf_on counts iterations, at most those of so many epochs at the smallest batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log
from typing import Any

from ..defense.registry import defense_options
from ..errors import InputError, nearest
from ..methods.base import Option, options
from ..methods.registry import method_classes


@dataclass(frozen=True)
class Span:
    """Numbers from `low` to `high`, both included: whole ones if `whole`, drawn evenly, or evenly in the logarithm."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise InputError(f"a range from {self.low} to {self.high} holds nothing; give the lower end first")
        if self.log and self.low <= 0:
            raise InputError(f"a range from {self.low} on has no logarithm; start above 0, or leave out log")

    def bring(self, value: Any) -> float:
        """The number nearest to `value`; the middle where that is no number."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            value = (self.low * self.high) ** 0.5 if self.log else (self.low + self.high) / 2
        inside = min(max(value, self.low), self.high)
        return round(inside) if self.whole else float(inside)


@dataclass(frozen=True)
class Choice:
    """One of these values."""

    values: tuple[bool | int | float | str, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise InputError("a choice among no values; give at least one")

    def bring(self, value: Any) -> bool | int | float | str:
        """`value` if it is one of them, else the nearest number, else the first."""
        if value in self.values:
            return next(known for known in self.values if known == value)
        numbers = [known for known in self.values if _is_positive(known)]
        if numbers and _is_positive(value):
            return min(numbers, key=lambda known: abs(log(float(known)) - log(float(value))))
        return self.values[0]


Range = Span | Choice
Space = Mapping[str, Range]


@dataclass(frozen=True)
class Limits:
    """What the ranges depend on: the epochs of the original's training, and how many examples are retained."""

    training_epochs: int
    retained: int

    @property
    def epochs(self) -> int:
        """A fifth of the training's, rounded up."""
        return -(-self.training_epochs // 5)

    @property
    def iterations(self) -> int:
        """Batches of so many epochs, at the smallest batch."""
        return self.epochs * -(-self.retained // min(_BATCHES))


_BATCHES = (64, 128, 256)
_Rule = Callable[[Limits], Range]


def _fixed(found: Range) -> _Rule:
    return lambda limits: found


_RATE = _fixed(Span(1e-5, 1e-1, log=True))
_BATCH = _fixed(Choice(_BATCHES))
_WEIGHT = _fixed(Span(0.0, 1.0))
_SHARE = _fixed(Span(0.01, 1.0))
_TEMPERATURE = _fixed(Span(0.1, 5.0))


def _epochs(limits: Limits) -> Range:
    return Span(1, limits.epochs, whole=True)


_EVERY_METHOD: Mapping[str, _Rule] = {
    "lr": _RATE,
    "weight_decay": _RATE,
    "epochs": _epochs,
    "batch_size": _BATCH,
    "retain_batch_size": _BATCH,
    "forget_batch_size": _BATCH,
}
_BY_METHOD: Mapping[str, Mapping[str, _Rule]] = {
    "ngp": {"alpha": _WEIGHT},
    "scrub": {"alpha": _WEIGHT, "gamma": _WEIGHT, "temperature": _TEMPERATURE, "max_epochs": _epochs},
    "salun": {"keep": _SHARE},
    "pgu": {
        "energy": _SHARE,
        "entropy_weight": _WEIGHT,
        "lr": _fixed(Span(1e-5, 1.0, log=True)),
        "last_lr": _fixed(Span(1e-5, 1.0, log=True)),
        "epochs": lambda limits: Span(1, 5 * limits.epochs, whole=True),
    },
    "bad_teacher": {"temperature": _TEMPERATURE, "retain_share": _SHARE},
    "srf_on": {
        "iterations": lambda limits: Span(1, limits.iterations, whole=True),
        "strength": _fixed(Span(0.1, 100.0, log=True)),
        "reweighting": _WEIGHT,
        "ratio": _fixed(Span(0.1, 10.0, log=True)),
    },
    "langevin": {
        "noise": _RATE,
        "alpha": _WEIGHT,
        "clip": _fixed(Span(0.1, 10.0, log=True)),
        # With lr up to 0.1 the accounting holds for all of it.
        "pull": _fixed(Span(1e-3, 5.0, log=True)),
    },
}
_BY_DEFENSE_OPTION: Mapping[str, Range] = {
    "step_size": Span(0.005, 0.5, log=True),
    "steps": Span(1, 5, whole=True),
    "dispersion": Span(0.01, 1.0, log=True),
    "energy": Span(0.95, 0.999),
    "spread": Span(0.05, 0.95),
}
_EVERY = Choice(("epoch", "end"))


def method_space(name: str, limits: Limits, *, changed: Space | None = None) -> dict[str, Range]:
    """The ranges of a method's settings, `changed` over ours. Of a method we do not know, what all have."""
    if name not in method_classes():
        raise InputError(f"unknown method {name!r}; {nearest(name, method_classes())}")
    if name == "retrain":
        raise InputError("retrain is what the trials are measured against; leave it out of the methods to tune")
    rules = {**_EVERY_METHOD, **_BY_METHOD.get(name, {})}
    known = options(method_classes()[name])
    ours = {option.name: rules[option.name](limits) for option in known if option.name in rules}
    return _changed(name, ours, known, changed)


def defense_space(name: str, *, changed: Space | None = None) -> dict[str, Range]:
    """The ranges of a defence's settings and those of its symmetry, `changed` over ours."""
    about = defense_options(name)
    known = [*about.options, *about.symmetry_options]
    ours = {option.name: _BY_DEFENSE_OPTION[option.name] for option in known if option.name in _BY_DEFENSE_OPTION}
    # Null spaces are left again and again; a change of basis is one, at its own time.
    often = {"every": _EVERY} if "energy" in ours else {}
    return _changed(name, {**ours, **often}, known, changed)


def corners(space: Space) -> list[dict[str, Any]]:
    """Settings at all lower ends and at all upper ends."""
    ends = [
        {name: (r.low, r.high) if isinstance(r, Span) else (r.values[0], r.values[-1])} for name, r in space.items()
    ]
    return [{name: both[i] for end in ends for name, both in end.items()} for i in (0, 1)]


def _changed(owner: str, ours: Mapping[str, Range], known: list[Option], changed: Space | None) -> dict[str, Range]:
    names = [option.name for option in known]
    for name in changed or {}:
        if name not in names:
            raise InputError(f"{owner} has no option {name!r} to search; {nearest(name, names)}")
    return {**ours, **(changed or {})}


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
