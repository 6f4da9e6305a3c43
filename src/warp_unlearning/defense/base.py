"""The contract of a defence, which may move the weights between the updates of any method: `unlearn` starts a `Defense`
and calls its `Session` after every update.

A defence draws from its own streams, secret except in experiments, since whoever can draw the same moves can undo them.
Each teleport has a stream to itself, so that what one reveals says nothing of another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from ..methods.base import Task
from ..randomness import Streams
from ..symmetry.moves import Move
from ..training.update import Update
from .certificate import Certificate


class Session(Protocol):
    """A defence during one unlearning, on the model that it was started with."""

    @property
    def certificates(self) -> Sequence[Certificate]:
        """One for each teleport so far."""

    def between(self, update: Update) -> Move | None:
        """Called after every update: move the weights in place and return the move, or return None."""

    def finish(self) -> None:
        """Called after the last update; may move the weights in place once more."""

    def brought_back(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Move weights that were kept during the run into the original's basis, and return them.

        The weights of a run that diverged are written to disk, and must not show a secret basis.
        """


@runtime_checkable
class Defense(Protocol):
    """Settings of a defence."""

    @property
    def name(self) -> str:
        """Its name in the registry, or that of its kind."""

    def start(self, model: nn.Module, task: Task, *, streams: Streams) -> Session:
        """Called before the first update; may move `model` in place. Teleport k draws from `streams.of(k)`."""
