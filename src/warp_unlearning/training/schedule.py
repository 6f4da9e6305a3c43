"""Learning rates over the course of a run."""

from __future__ import annotations

from math import cos, pi


def cosine(progress: float) -> float:
    """The factor ½(1 + cos π·progress) of cosine annealing, from 1 at progress 0 to 0 at progress 1.

    >>> [round(cosine(p), 3) for p in (0, 0.5, 1)]
    [1.0, 0.5, 0.0]
    """
    return 0.5 * (1 + cos(pi * progress))


def geometric(first: float, last: float, progress: float) -> float:
    """From `first` to `last` by equal ratios.

    >>> round(geometric(0.05, 0.01, 1.0), 6)
    0.01
    """
    return float(first * (last / first) ** progress)


def staircase(progress: float, *, milestones: tuple[float, ...], factor: float = 0.1) -> float:
    """`factor` to the number of `milestones` (shares of the run) already passed.

    >>> staircase(0.6, milestones=(0.5, 0.8))
    0.1
    """
    return float(factor ** sum(progress > m for m in milestones))
