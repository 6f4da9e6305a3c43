"""What a shadow audit is asked to do, as plain data that can be sent to other processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ALGORITHM = 2
"""In the keys of arms whose defence or method is another since version 0.1; their old results keep the old keys."""
_OTHER_METHODS = ("srf_on", "langevin")


@dataclass(frozen=True)
class Arm:
    """A method with its settings, alone or with a defence."""

    method: str
    method_settings: Mapping[str, Any] = field(default_factory=dict)
    defense: str | None = None
    defense_settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As tables show it."""
        return self.method if self.defense is None else f"{self.method} + {self.defense}"

    @property
    def ingredients(self) -> dict[str, Any]:
        """What of the arm decides a result, for keys."""
        names = ("method", "method_settings", "defense", "defense_settings")
        found = {name: getattr(self, name) for name in names}
        changed = self.defense is not None or self.method in _OTHER_METHODS
        return found | ({"algorithm": ALGORITHM} if changed else {})


@dataclass(frozen=True)
class ShadowSettings:
    """Which data, network and recipe; the arms; how many shadows with how many forget sets, which cover `share` of each
    shadow's training half; how many pairs of models of each arm are attacked with their weights. `network_file` is a
    user's FILE.py:build.
    """

    data: Mapping[str, Any]
    network: str
    network_options: Mapping[str, Any]
    training: Mapping[str, Any]
    arms: tuple[Arm, ...]
    shadows: int = 16
    forget_sets: int = 4
    share: float = 0.4
    pairs: int = 1
    seed: int = 0
    device: str = "cpu"
    network_file: str | None = None
