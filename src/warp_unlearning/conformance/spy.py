"""A defence that only looks, or applies a given move, to see what a method does between its updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from ..defense.certificate import Certificate
from ..methods.base import Task
from ..randomness import Streams
from ..symmetry.moves import Move, apply_move
from ..training.update import Update

Look = Callable[[nn.Module, Task, Update], Move | None]
Glance = Callable[[nn.Module, Task], None]


@dataclass(frozen=True, eq=False)
class Spy:
    """Calls `look` after every update; a move it returns is applied to the weights and handed to the method.

    `at_start` is called before the first update, `at_end` after the last.
    """

    name: ClassVar[str] = "spy"
    look: Look = lambda model, task, update: None
    at_start: Glance = lambda model, task: None
    at_end: Glance = lambda model, task: None

    def start(self, model: nn.Module, task: Task, *, streams: Streams) -> SpySession:
        """Begin to watch."""
        self.at_start(model, task)
        return SpySession(self, model, task)


@dataclass(frozen=True, eq=False)
class SpySession:
    """The spy at work."""

    spy: Spy
    model: nn.Module
    task: Task
    certificates: Sequence[Certificate] = ()

    def between(self, update: Update) -> Move | None:
        """Look, and apply the move if there is one."""
        move = self.spy.look(self.model, self.task, update)
        if move is not None:
            apply_move(self.model, move)
        return move

    def finish(self) -> None:
        """Look a last time."""
        self.spy.at_end(self.model, self.task)

    def brought_back(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The state as it is."""
        return state
