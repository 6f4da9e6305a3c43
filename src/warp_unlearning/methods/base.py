"""What an unlearning method is: a generator of updates over a task. `unlearn` builds the task, takes the updates one by
one, and sends back the moves that a defence made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from math import isfinite
from typing import Any, ClassVar, Literal, NoReturn, Protocol, cast, runtime_checkable

from torch import nn

from ..data.examples import Batch, Examples
from ..data.sampling import batch_shape, shuffled
from ..errors import InputError, nearest
from ..gpu.graphs import Captured, Compute, Function
from ..gpu.precision import Precision
from ..models.fresh import fresh
from ..models.modes import NormMode as NormMode
from ..randomness import Streams
from ..symmetry.base import Option as Option
from ..symmetry.base import option as option
from ..training.update import Updates

SetName = Literal["forget", "retain"]


@dataclass(frozen=True, eq=False)
class Task:
    """What to forget and what to keep. `validation` is held-out data, if any; `classes` is how many labels there are.

    `original` is a frozen copy of the model before unlearning, in eval mode, for methods that imitate its *outputs*.
    Anything in weight coordinates must come from the model being updated: a defence may move that one before the first
    update. Every random draw comes from `streams`. `compute` sets the precision of updates and whether they are
    captured; without one they run in float32, one operation after another. `untrained`, a network or a function that
    builds one, is for methods that start anew; without it they call `reset_parameters`.
    """

    forget: Examples
    retain: Examples
    validation: Examples | None
    original: nn.Module
    classes: int
    streams: Streams
    compute: Compute | None = None
    untrained: nn.Module | Callable[[], nn.Module] | None = None

    def fresh(self, model: nn.Module, stream: str) -> nn.Module:
        """A copy of `model` with the weights of `untrained`, or without that, weights drawn from the named stream."""
        return fresh(model, generator=self.streams.generator(stream), untrained=self.untrained)

    def batches(self, name: SetName, size: int, *, epoch: int | None = None) -> Iterator[Batch]:
        """Shuffled batches of a set: one pass in an order of this epoch's own, or without an epoch, pass after pass."""
        generator = self.streams.generator(name) if epoch is None else self.streams.generator(name, epoch)
        return shuffled(getattr(self, name), size, generator=generator, endless=epoch is None)

    def batch_count(self, name: SetName, size: int) -> int:
        """How many batches one pass has."""
        return batch_shape(len(getattr(self, name)), size)[0]

    def update(self, function: Function, *, precision: Precision | None = None) -> Captured:
        """Prepare an update that is called many times, captured as one graph if the task captures. The function takes
        tensors and numbers, reads no value and changes all state in place. `precision` is the task's unless given.
        """
        return (self.compute or Compute(self.forget.y.device)).update(function, precision=precision)

    def require_validation(self, why: str) -> Examples:
        """The validation set, or an error that says what needs it."""
        if self.validation is None:
            raise InputError(f"{why} needs a validation set; give validation=... or switch it off")
        return self.validation


@runtime_checkable
class Method(Protocol):
    """A way to forget, with its settings.

    `move = yield update`: if a defence moved the weights after that update, `move` is not None. The method then carries
    along all that it keeps in weight coordinates (momentum, anchors, masks, bases, snapshots).
    """

    name: ClassVar[str]

    @property
    def norm_mode(self) -> NormMode:
        """The mode of batch norm during updates: batch statistics ("train") or running ones ("eval")."""

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

    def refuse(key: str, why: str) -> NoReturn:
        raise InputError(f"{name}: {key} is {getattr(method, key)!r}; {why}")

    for key, allowed in (choices or {}).items():
        if getattr(method, key) not in allowed:
            refuse(key, nearest(str(getattr(method, key)), allowed))
    for key in (*positive, *shares, *counts, *not_negative):
        value = getattr(method, key)
        if value is None and type(method).__annotations__.get(key) not in ("float", "int"):
            continue
        if not isinstance(value, int | float) or isinstance(value, bool):
            refuse(key, "it must be a number")
        if not isfinite(value):
            refuse(key, "it must be finite")
        if key in not_negative and value < 0:
            refuse(key, "it must be at least 0")
        if key in positive and not value > 0:
            refuse(key, "it must be above 0")
        if key == "momentum" and value == 1:
            refuse(key, "it must be below 1, or steps never end")
        if key in shares and not 0 <= value <= 1:
            refuse(key, "it must lie between 0 and 1")
        if key in counts and (not isinstance(value, int) or value < 1):
            refuse(key, "it must be a whole number of at least 1")
