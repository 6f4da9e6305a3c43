"""Which shadow trains on which points, and which of them each of its unlearned models forgets.

Shadows come in complementary pairs: the second trains on exactly the points the first does not, so that every point
is trained on by half of them. The forget sets of a shadow are disjoint parts of its training half, so that with parts
that fill it every point is forgotten exactly once by every shadow that trained on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ShadowDesign:
    """`trained`: shape (shadows, points). `part`: the forget set a point is in, −1 for none; the same shape.

    Unlearned models are numbered shadow by shadow: model s·forget_sets + k forgot part k of shadow s.
    """

    trained: Mask
    part: NDArray[np.int16]
    forget_sets: int

    @property
    def groups(self) -> NDArray[np.int64]:
        """The shadow each unlearned model descends from, shape (models,)."""
        return np.repeat(np.arange(len(self.trained)), self.forget_sets)

    @property
    def forgotten(self) -> Mask:
        """Whether an unlearned model was asked to forget a point, shape (models, points)."""
        asked = self.part[:, None, :] == np.arange(self.forget_sets, dtype=np.int16)[None, :, None]
        return np.asarray(asked.reshape(-1, self.part.shape[1]), dtype=bool)

    @property
    def never(self) -> Mask:
        """Whether an unlearned model's shadow never saw a point, shape (models, points)."""
        return np.repeat(~self.trained, self.forget_sets, axis=0)

    @property
    def retained(self) -> Mask:
        """Whether an unlearned model trained on a point and was not asked to forget it, shape (models, points)."""
        return ~self.never & ~self.forgotten


def shadow_design(
    points: int, *, shadows: int, forget_sets: int, generator: np.random.Generator, share: float = 1.0
) -> ShadowDesign:
    """Complementary shadows; `share` of every training half is cut into `forget_sets` disjoint parts.

    Parts of one shadow differ in size by one point at most. The design depends on the generator alone.
    """
    if shadows < 2 or shadows % 2:
        raise InputError(f"{shadows} shadows; complementary pairs need an even number, at least 2")
    if not 0 < share <= 1:
        raise InputError(f"the share of a training half that is forgotten is {share}; it must lie in (0, 1]")
    if forget_sets < 1 or round(share * (points // 2)) < forget_sets:
        raise InputError(
            f"{forget_sets} forget sets from {share} of the {points // 2} points a shadow trains on; each needs a point"
        )
    trained = np.zeros((shadows, points), dtype=bool)
    part = np.full((shadows, points), -1, dtype=np.int16)
    for first in range(0, shadows, 2):
        order = generator.permutation(points)
        halves = order[: points // 2], order[points // 2 :]
        for shadow, half in zip((first, first + 1), halves, strict=True):
            trained[shadow, half] = True
            asked = generator.permutation(half)[: round(share * len(half))]
            part[shadow, asked] = np.arange(len(asked)) % forget_sets
    return ShadowDesign(trained, part, forget_sets)
