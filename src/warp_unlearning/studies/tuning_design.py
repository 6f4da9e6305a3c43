"""Which points the shadows of a tuning train on, forget and are measured on: none that a report rests on.

Shadows of a tuning are numbered from 1000 on and have halves of the data of their own; audits number theirs from 0. The
test part of the data is not touched at all: what a shadow of the tuning never saw of the training part is cut in two,
`validation` for the objectives and for methods that ask for it, `held_out` for the accuracy of the frontier. Points
that a study audits are trained on like all others, since the size of the training set matters, but are neither
forgotten nor measured here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.table import Index
from ..errors import DataError, InputError
from ..randomness import Streams
from .tuning_objectives import FEWEST

FIRST_SHADOW = 1000


@dataclass(frozen=True, eq=False)
class TuningShadow:
    """Sorted positions in the training part: all that the shadow `number` trains on; its disjoint forget sets; and, of
    what it never saw, two halves. The last three hold no audited point; `measured` says which of all points are not.
    """

    number: int
    trained: Index
    forget: tuple[Index, ...]
    validation: Index
    held_out: Index
    measured: NDArray[np.bool_]

    def retained(self, part: int) -> Index:
        """What is trained on and not in this forget set."""
        return np.setdiff1d(self.trained, self.forget[part])

    def retained_measured(self, part: int) -> Index:
        """Those of them on which accuracy is measured."""
        kept = self.retained(part)
        return kept[self.measured[kept]]


def tuning_design(
    points: int, *, shadows: int, forget_sets: int, fraction: float, seed: int, audited: NDArray[np.int64] | None = None
) -> tuple[TuningShadow, ...]:
    """The shadows of a tuning of `points` training examples, in complementary pairs as far as their number allows.

    Each pair draws from a stream of its own, so that more shadows leave the first as they were.
    """
    if shadows < 1 or forget_sets < 1:
        raise InputError(f"{shadows} shadows with {forget_sets} forget sets; give at least one of each")
    measured = np.ones(points, dtype=bool)
    if audited is not None:
        measured[audited_rows(audited, points)] = False
    return tuple(_shadow(i, measured, forget_sets, fraction, seed) for i in range(shadows))


def audited_rows(asked: NDArray[Any], points: int) -> Index:
    """The row numbers asked for, sorted, each once, if there are such rows among `points`."""
    if asked.ndim != 1 or asked.dtype.kind not in "iu" or not len(asked):
        raise DataError(f"the audited rows are {asked.dtype} of shape {asked.shape}; give whole numbers, shape (n,)")
    rows = np.unique(asked)
    outside = rows[(rows < 0) | (rows >= points)]
    if len(outside):
        raise DataError(f"the audited row {outside[0]} is not there; {points} training rows are numbered from 0")
    return rows.astype(np.int64)


def _shadow(index: int, measured: NDArray[np.bool_], forget_sets: int, fraction: float, seed: int) -> TuningShadow:
    points, number = len(measured), FIRST_SHADOW + index
    streams = Streams(seed, "tuning")
    order = np.random.default_rng(streams.number("halves", index // 2)).permutation(points)
    halves = order[: points // 2], order[points // 2 :]
    trained, unseen = np.sort(halves[index % 2]), np.sort(halves[1 - index % 2])
    generator = np.random.default_rng(streams.number("parts", number))
    size = round(fraction * len(trained))
    known = generator.permutation(trained[measured[trained]])
    others = generator.permutation(unseen[measured[unseen]])
    # A point more than all sets have, so that something retained is left to measure.
    if size < FEWEST or len(known) <= size * forget_sets or len(others) < 2 * FEWEST:
        raise InputError(
            f"of {points} points, {int(measured.sum())} of them not audited, a shadow trains on {len(trained)}: too "
            f"few for {forget_sets} forget sets of {size} and two halves of unseen points, {FEWEST} each at least; "
            "forget another fraction, take fewer sets, or audit fewer points"
        )
    return TuningShadow(
        number,
        trained,
        tuple(np.sort(part) for part in np.split(known[: size * forget_sets], forget_sets)),
        np.sort(others[: len(others) // 2]),
        np.sort(others[len(others) // 2 :]),
        measured,
    )
