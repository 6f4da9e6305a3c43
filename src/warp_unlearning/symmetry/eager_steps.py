"""Steps of a walk downhill, operation by operation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .forget_energy import Slopes
from .walk_parts import Ground, Heading, Reach, Standing, Survey, heading, step, survey


class EagerSteps:
    """`Steps` on any device."""

    def __init__(self, ground: Ground, settings: Reach) -> None:
        self._ground, self._settings = ground, settings
        self._seen: Survey | None = None
        self._way: Heading | None = None

    @property
    def begun(self) -> Tensor:
        """As the protocol says."""
        assert self._seen is not None
        return self._seen.start

    def survey(self, found: Slopes, generator: torch.Generator) -> Tensor:
        """As the protocol says."""
        noise = self._ground.noise(generator) if self._settings.dispersion != 0 else None
        self._seen = survey(self._ground, found, noise)
        return self._seen.numbers

    def head(self, weights: Sequence[float]) -> None:
        """As the protocol says."""
        assert self._seen is not None
        combined = torch.zeros_like(self._seen.start)
        for term, weight in zip(self._seen.terms, weights, strict=True):
            if weight != 0:
                combined.add_(term, alpha=weight)
        self._way = heading(self._ground, self._settings, self._seen, combined)

    def go(self, share: float) -> Standing:
        """As the protocol says."""
        assert self._seen is not None
        assert self._way is not None
        return step(self._ground, self._seen.start, self._way, share)
