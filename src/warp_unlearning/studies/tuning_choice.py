"""Which trial of an arm is chosen, and which lie on the frontier of accuracy against membership advantage."""

from __future__ import annotations

from collections.abc import Sequence

from .tuning_objectives import norm
from .tuning_search import Trial


def chosen_trial(trials: Sequence[Trial]) -> Trial | None:
    """The complete trial with the smallest norm of objectives, the first of equals; None where none is complete."""
    complete = [(norm(trial.objectives), trial.number, trial) for trial in trials if trial.objectives is not None]
    return min(complete, key=lambda found: found[:2])[2] if complete else None


def on_frontier(accuracy: Sequence[float], advantage: Sequence[float]) -> list[bool]:
    """Of points (accuracy, advantage), which are such that no other is at least as accurate with no more advantage, and
    better in one of the two.

    >>> on_frontier([0.9, 0.8, 0.8], [0.3, 0.1, 0.2])
    [True, True, False]
    """
    points = list(zip(accuracy, advantage, strict=True))
    return [not any(_better(other, point) for other in points) for point in points]


def _better(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] >= other[0] and one[1] <= other[1] and one != other
