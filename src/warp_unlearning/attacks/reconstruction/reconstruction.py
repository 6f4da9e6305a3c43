"""What an attack rebuilt: the images, how well they explain the difference, and what the attacker held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...data.files import to_json


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """`images` (n, count, channels, height, width) with values in [0, 1], the best of the restarts for each of n
    targets; `losses` (n,) are their distances from what was read, `restarts` (n, r) those of all restarts. `labels`
    (n, count) are those used, inferred where the threat has none.
    """

    attack: str
    after: str
    images: Tensor
    losses: Tensor
    restarts: Tensor
    labels: Tensor
    threat: tuple[str, ...]
    settings: Mapping[str, Any]
    notes: tuple[str, ...]
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """Plain data, without the images."""
        found: dict[str, Any] = to_json(
            {
                "attack": self.attack,
                "after": self.after,
                "losses": self.losses.tolist(),
                "restarts": self.restarts.tolist(),
                "labels": self.labels.tolist(),
                "threat": list(self.threat),
                "settings": dict(self.settings),
                "notes": list(self.notes),
                "seconds": self.seconds,
            }
        )
        return found
