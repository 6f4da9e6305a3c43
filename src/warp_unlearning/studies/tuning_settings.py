"""What a tuning is asked to do, as plain data that can be sent to other processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .shadow_settings import Arm, ShadowSettings
from .tuning_space import Range

METHOD, DEFENSE = "method", "defense"


@dataclass(frozen=True)
class TunedArm:
    """A method, alone or with a defence: what its settings start from, and the ranges of those that are searched.

    `space` has a name "method.lr" or "defense.steps" for each. The start of a search is what `start` has for them; what
    is in `start` alone stays as it is.
    """

    start: Arm
    space: Mapping[str, Range]

    @property
    def name(self) -> str:
        """As tables show it."""
        return self.start.name

    def first(self) -> dict[str, Any]:
        """The searched settings at the start, each brought into its range."""
        given = {METHOD: self.start.method_settings, DEFENSE: self.start.defense_settings}
        return {name: found.bring(given[_owner(name)].get(_option(name))) for name, found in self.space.items()}

    def arm(self, values: Mapping[str, Any]) -> Arm:
        """The arm with the searched settings at these values."""
        of = {
            owner: {_option(name): value for name, value in values.items() if _owner(name) == owner}
            for owner in (METHOD, DEFENSE)
        }
        return Arm(
            self.start.method,
            {**self.start.method_settings, **of[METHOD]},
            self.start.defense,
            {**self.start.defense_settings, **of[DEFENSE]},
        )


@dataclass(frozen=True)
class TuningSettings:
    """Which data, network and recipe; the arms, with as many trials each; how many shadows with how many forget sets,
    each `fraction` of a shadow's training half.
    """

    data: Mapping[str, Any]
    network: str
    network_options: Mapping[str, Any]
    training: Mapping[str, Any]
    arms: tuple[TunedArm, ...]
    trials: int = 8
    sampler: str = "nsga3"
    population: int = 4
    shadows: int = 2
    forget_sets: int = 1
    fraction: float = 0.1
    seed: int = 0
    device: str = "cpu"
    network_file: str | None = field(default=None)

    @property
    def models(self) -> ShadowSettings:
        """What decides a network of this tuning, in the form of a shadow audit."""
        return ShadowSettings(
            data=self.data,
            network=self.network,
            network_options=self.network_options,
            training=self.training,
            arms=(),
            seed=self.seed,
            device=self.device,
            network_file=self.network_file,
        )


def _owner(name: str) -> str:
    return name.partition(".")[0]


def _option(name: str) -> str:
    return name.partition(".")[2]
