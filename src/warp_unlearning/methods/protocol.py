"""What an unlearning method is: a generator of updates over a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from math import isfinite
from typing import Any, ClassVar, Protocol, cast, runtime_checkable

from torch import nn

from ..data.examples import Examples
from ..errors import InputError, nearest
from ..models.fresh import fresh
from ..models.modes import NormMode as NormMode
from ..randomness import Streams
from ..symmetry.base import Option as Option
from ..symmetry.base import option as option
from ..training.precision import Precision
from ..training.repeated import Function, Repeated, Repeater
from ..training.update import Updates


@dataclass(frozen=True, eq=False)
class Task:
    """What there is to forget and to keep.

    `original` is a frozen copy of the model as it was asked to forget, in eval mode: a teacher, to be read for its
    *outputs*. Whatever a method keeps in weight coordinates it takes from the model it updates, which a defence may
    have moved before the first update. Every random draw comes from `streams`. `repeater` says in what precision
    updates are computed and whether they are captured; without one, in float32 and one operation after another.
    `untrained`, a network or what builds one, is for methods that start anew; without it `reset_parameters` is called.
    """

    forget: Examples
    retain: Examples
    validation: Examples | None
    original: nn.Module
    classes: int
    streams: Streams
    repeater: Repeater | None = None
    untrained: nn.Module | Callable[[], nn.Module] | None = None

    def fresh(self, model: nn.Module, stream: str) -> nn.Module:
        """A copy of `model` as if newly built: with the weights of `untrained`, or drawn from the stream of this name
        where nobody gave one.
        """
        return fresh(model, generator=self.streams.generator(stream), untrained=self.untrained)

    def repeated(self, function: Function, *, precision: Precision | None = None) -> Repeated:
        """An update that is taken again and again, as one captured graph where the task asks for that: a function of
        tensors and numbers that reads no value and changes all it keeps in place. `precision` is the task's unless
        given.
        """
        return (self.repeater or Repeater(self.forget.y.device))(function, precision=precision)

    def require_validation(self, why: str) -> Examples:
        """The validation set, or an error that says what needs it."""
        if self.validation is None:
            raise InputError(f"{why} needs a validation set; give validation=... or switch it off")
        return self.validation


@runtime_checkable
class Method(Protocol):
    """A way to forget, with its settings.

    `moved = yield update`: where a defence moved the weights after that update, the method is sent the move and carries
    across whatever it keeps in weight coordinates (momentum, anchors, masks, bases, snapshots); a method that keeps
    nothing ignores it.
    """

    name: ClassVar[str]

    @property
    def norm_mode(self) -> NormMode:
        """Whether batch norm uses the statistics of the batch ("train") or the running ones ("eval") while this method
        updates.
        """

    def updates(self, model: nn.Module, task: Task) -> Updates:
        """Update `model` in place, yielding after every optimizer step."""


def options(method: type[Method]) -> list[Option]:
    """The settings of a method class, in the order they are declared."""
    return [
        Option(f.name, str(f.type), None if f.default is MISSING else f.default, f.metadata.get("help", ""))
        for f in fields(cast(Any, method))
    ]


def require(
    method: object,
    *,
    positive: Sequence[str] = (),
    shares: Sequence[str] = (),
    counts: Sequence[str] = (),
    not_negative: Sequence[str] = (),
    choices: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Check settings: `positive` above 0, `shares` in [0, 1], `counts` whole numbers of at least 1, `not_negative` at
    least 0, all of them finite (None passes), and `choices` one of those given.
    """
    name = getattr(method, "name", type(method).__name__)
    for key, known in (choices or {}).items():
        if getattr(method, key) not in known:
            raise InputError(f"{name}: {key} is {getattr(method, key)!r}; {nearest(str(getattr(method, key)), known)}")
    for key in (*positive, *shares, *counts, *not_negative):
        value = getattr(method, key)
        if value is None and type(method).__annotations__.get(key) not in ("float", "int"):
            continue
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise InputError(f"{name}: {key} is {value!r}; it must be a number")
        if not isfinite(value):
            raise InputError(f"{name}: {key} is {value}; it must be finite")
        if key in not_negative and value < 0:
            raise InputError(f"{name}: {key} is {value}; it must be at least 0")
        if key in positive and not value > 0:
            raise InputError(f"{name}: {key} is {value}; it must be above 0")
        if key == "momentum" and value == 1:
            raise InputError(f"{name}: momentum is 1; it must be below 1, or steps never end")
        if key in shares and not 0 <= value <= 1:
            raise InputError(f"{name}: {key} is {value}; it must lie between 0 and 1")
        if key in counts and (not isinstance(value, int) or value < 1):
            raise InputError(f"{name}: {key} is {value}; it must be a whole number of at least 1")
