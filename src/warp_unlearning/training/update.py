"""What training and unlearning report after every step, to their caller and to a defence; learning rates over a run."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from math import cos, pi

from torch import Tensor

from ..symmetry.moves import Move


@dataclass(frozen=True, eq=False)
class Update:
    """One optimizer step that has just been taken: number `step` of `total`, counted from 1, in epoch `epoch`, from 0.

    `losses` are the terms that were minimised or maximised, each as the loss itself (positive for a cross-entropy),
    evaluated before the step; they stay tensors on the device, so that nothing waits for a GPU to read them. `frozen`
    marks the entries (True) of each named parameter that this step was not allowed to move. `restarts` says that the
    step was taken from other weights than the update before left, such as fresh ones.
    """

    step: int
    total: int
    epoch: int
    ends_epoch: bool
    losses: Mapping[str, Tensor]
    frozen: Mapping[str, Tensor] = field(default_factory=dict)
    restarts: bool = False


Updates = Generator[Update, Move | None, None]
"""A training or an unlearning: yields after each step. Send in the move made between updates, or None."""


def cosine(progress: float) -> float:
    """The factor ½(1 + cos π·progress) of cosine annealing, from 1 at progress 0 to 0 at progress 1.

    >>> [round(cosine(p), 3) for p in (0, 0.5, 1)]
    [1.0, 0.5, 0.0]
    """
    return 0.5 * (1 + cos(pi * progress))


def geometric(first: float, last: float, progress: float) -> float:
    """The learning rate at this share of a run, from `first` to `last` by equal ratios.

    >>> round(geometric(0.05, 0.01, 1.0), 6)
    0.01
    """
    return float(first * (last / first) ** progress)


def staircase(progress: float, *, milestones: tuple[float, ...], factor: float = 0.1) -> float:
    """What a learning rate is multiplied by: `factor` for each of `milestones` (shares of the run) already passed.

    >>> staircase(0.6, milestones=(0.5, 0.8))
    0.1
    """
    return float(factor ** sum(progress > m for m in milestones))
