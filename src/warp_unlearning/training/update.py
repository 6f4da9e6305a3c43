"""What training and unlearning report after every optimizer step."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from ..symmetry.moves import Move


@dataclass(frozen=True, eq=False)
class Update:
    """One optimizer step that has just been taken.

    `losses` are the terms that were minimised or maximised, each as the loss itself (positive for a cross-entropy),
    evaluated before the step; they stay tensors on the device, so that nobody waits for a GPU to read them. `frozen`
    marks the entries (True) of each named parameter that this step was not allowed to move. `restarts` says that the
    step was taken from other weights than the update before left, such as fresh ones.
    """

    step: int
    of: int
    epoch: int
    ends_epoch: bool
    losses: Mapping[str, Tensor]
    frozen: Mapping[str, Tensor] = field(default_factory=dict)
    restarts: bool = False


Updates = Generator[Update, Move | None, None]
"""A training or an unlearning: yields after each step, and is sent the move where the weights were moved in between."""
