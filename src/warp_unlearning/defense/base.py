"""What a defence is: something that may move the weights between the updates of any method.

A defence draws from streams of its own, secret unless an experiment says otherwise: whoever can draw the same moves can
undo them. Each teleport draws from a stream of its own, so that what one gives away says nothing of another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from ..methods.protocol import Task
from ..randomness import Streams
from ..symmetry.moves import Move
from ..training.update import Update
from .certificate import Certificate


class Session(Protocol):
    """A defence at work during one unlearning, on the model it was started with."""

    @property
    def certificates(self) -> Sequence[Certificate]:
        """One for each teleport so far."""

    def between(self, update: Update) -> Move | None:
        """Called after every update: move the weights in place and return the move, or leave them and return None."""

    def finish(self) -> None:
        """Called after the last update; may move the weights in place once more."""

    def brought_back(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Weights kept during the run, in the original's basis: as they are, unless the session works in another one.

        Those of a run that diverged are written to disk, and a basis that nobody may learn would show in them.
        """


@runtime_checkable
class Defense(Protocol):
    """Settings of a defence."""

    @property
    def name(self) -> str:
        """The name it was asked for by, or that of its kind."""

    def start(self, model: nn.Module, task: Task, *, streams: Streams) -> Session:
        """Called before the first update; may move the weights of `model` in place. Teleport k draws from
        `streams.of(k)`.
        """
