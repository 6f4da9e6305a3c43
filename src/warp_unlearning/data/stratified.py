"""Draw a number of examples so that each class keeps its share.

Shares are rounded by largest remainder, so the total is exact and no class is off by one example or more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import DataError
from ..randomness import Streams


def draw_per_class(labels: NDArray[Any], *, count: int, generator: torch.Generator) -> NDArray[np.int64]:
    """Sorted positions of `count` of the `labels`, each class in proportion."""
    _, which, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    chosen = [_draw(np.flatnonzero(which == k), share, generator) for k, share in enumerate(_shares(sizes, count))]
    return np.sort(np.concatenate(chosen)) if chosen else np.empty(0, dtype=np.int64)


def draw(positions: NDArray[np.int64], *, count: int, generator: torch.Generator) -> NDArray[np.int64]:
    """`count` of the `positions`, sorted, whatever their class."""
    return np.sort(_draw(positions, count, generator))


def fixed_test_part(labels: NDArray[Any], *, fraction: float, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Train and test positions for data that come without a test part: the same for every seed of a user."""
    count = round(fraction * len(labels))
    if not 0 < count < len(labels):
        raise DataError(f"{name} has {len(labels)} examples, too few to set a test part aside; give a test part")
    test = draw_per_class(labels, count=count, generator=Streams(0).generator(name, "test"))
    return np.setdiff1d(np.arange(len(labels)), test), test


def _shares(sizes: NDArray[np.int64], count: int) -> list[int]:
    total = max(int(sizes.sum()), 1)
    exact = count * sizes.astype(np.int64)
    shares = exact // total
    left = count - int(shares.sum())
    shares[np.argsort(-(exact % total), kind="stable")[:left]] += 1
    return [int(s) for s in shares]


def _draw(positions: NDArray[np.int64], count: int, generator: torch.Generator) -> NDArray[np.int64]:
    order = torch.randperm(len(positions), generator=generator).numpy()
    chosen: NDArray[np.int64] = positions[order[:count]].astype(np.int64)
    return chosen
