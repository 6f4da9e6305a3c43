"""What a study is asked to do, as plain data: its arms, how many shadows, and which points are audited."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import InputError
from .shadow_settings import Arm


@dataclass(frozen=True)
class StudyArm(Arm):
    """An arm of a study: unlearns the first `sets` forget sets of every shadow. `called` is what its defence is called
    where that is not its name, as a control that uses a defence's code. `swept` names what is varied and its value.
    """

    called: str | None = None
    sets: int = 4
    swept: Mapping[str, float] = field(default_factory=dict)

    @property
    def shown_method(self) -> str:
        """The method as tables call it."""
        return self.method

    @property
    def shown_defense(self) -> str | None:
        """The defence as tables call it."""
        return self.called or self.defense

    @property
    def name(self) -> str:
        """As tables show it."""
        defended = self.shown_method if self.shown_defense is None else f"{self.shown_method} + {self.shown_defense}"
        return " ".join([defended, *(f"{key}={value:g}" for key, value in self.swept.items())])


@dataclass(frozen=True)
class CellSettings:
    """Which data, network and recipe; the arms; the shadows.

    `validation` points are held out of every training, for methods that choose by them. The training half of each
    shadow is cut into `parts` disjoint forget sets. Scores of `audited` points are kept, the same in every study of the
    seed. Of the first `pairs` shadows, the models that forgot the first set are attacked with their weights.
    `first_shadow` shifts the numbers of the shadows, so that a tuning has others than a report.
    """

    data: Mapping[str, Any]
    network: str
    network_options: Mapping[str, Any]
    training: Mapping[str, Any]
    arms: tuple[StudyArm, ...]
    shadows: int = 8
    parts: int = 10
    audited: int = 1000
    validation: int = 100
    pairs: int = 0
    pair_examples: int = 1000
    first_shadow: int = 0
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        for arm in self.arms:
            if not 1 <= arm.sets <= self.parts:
                raise InputError(f"{arm.name} unlearns {arm.sets} sets of {self.parts}; give 1 to {self.parts}")
        names = [arm.name for arm in self.arms]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"{names.count(name)} arms are called {name!r}; leave one of them out")
