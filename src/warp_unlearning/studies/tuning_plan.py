"""The jobs of a tuning, each under a key of everything that decides its result.

| kind | what it does | needs |
|---|---|---|
| tuning-train | a shadow on its half of the points | |
| tuning-retrain | the same without one forget set: the oracle, and what it says | |
| tuning-trial | one forget set of one shadow, by one trial's settings, and what the model says | the two |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..data.files import array_digest, to_json
from ..data.preprocess import ImageData
from ..runs.jobs import Job
from ..runs.keys import Key
from .shadow_settings import Arm
from .tuning_design import TuningShadow
from .tuning_settings import TuningSettings

TRAIN, RETRAIN, TRIAL = "tuning-train", "tuning-retrain", "tuning-trial"
# A change of what a kind of job computes changes its number, so that results of before are not taken for it.
VERSIONS = {TRAIN: 1, RETRAIN: 1, TRIAL: 1}


@dataclass(frozen=True)
class Unit:
    """One forget set (`part`) of one shadow, by its place in the design."""

    shadow: int
    part: int


@dataclass(frozen=True)
class TuningTask:
    """Which job: of which unit and, for a trial, by which arm. A training is of part 0."""

    kind: str
    unit: Unit
    arm: Arm | None = None


class Planned(NamedTuple):
    """A task and its job."""

    task: TuningTask
    job: Job


@dataclass(frozen=True, eq=False)
class TuningPlan:
    """Makes the jobs of one tuning."""

    settings: TuningSettings
    data_digest: str
    network_digest: str | None
    design: tuple[TuningShadow, ...]

    def units(self) -> Iterator[Unit]:
        """Every forget set of every shadow."""
        for shadow in range(len(self.design)):
            for part in range(self.settings.forget_sets):
                yield Unit(shadow, part)

    def references(self) -> list[Planned]:
        """The trainings and retrainings that all trials share."""
        shadows = [TuningTask(TRAIN, Unit(shadow, 0)) for shadow in range(len(self.design))]
        oracles = [TuningTask(RETRAIN, unit) for unit in self.units()]
        return [Planned(task, self._job(task)) for task in (*shadows, *oracles)]

    def trial(self, arm: Arm) -> list[Planned]:
        """The jobs of one trial: one a unit."""
        tasks = [TuningTask(TRIAL, unit, arm) for unit in self.units()]
        return [Planned(task, self._job(task)) for task in tasks]

    def _job(self, task: TuningTask) -> Job:
        if task.kind == TRAIN:
            return Job(self._key(TRAIN, self._training(task.unit)), cost=8.0)
        if task.kind == RETRAIN:
            return Job(self._key(RETRAIN, self._retraining(task.unit)), cost=8.0)
        needs = tuple(self._job(other).key for other in self.needs(task))
        return Job(self._key(TRIAL, self._trial(task, needs)), needs, cost=2.0)

    def key(self, task: TuningTask) -> Key:
        """The key of a task."""
        return self._job(task).key

    def needs(self, task: TuningTask) -> tuple[TuningTask, TuningTask]:
        """The training and the retraining behind a trial."""
        return TuningTask(TRAIN, Unit(task.unit.shadow, 0)), TuningTask(RETRAIN, task.unit)

    def _key(self, kind: str, ingredients: Mapping[str, Any]) -> Key:
        return Key(kind, VERSIONS[kind], to_json(ingredients))

    def _training(self, unit: Unit) -> dict[str, Any]:
        settings, shadow = self.settings, self.design[unit.shadow]
        return {
            "data": self.data_digest,
            "network": {
                "name": settings.network,
                "options": settings.network_options,
                "file": self.network_digest,
            },
            "recipe": settings.training,
            "loss": "cross entropy",
            "trained": array_digest(shadow.trained),
            "seed": settings.seed,
            "shadow": shadow.number,
            "device": settings.device.partition(":")[0],
        }

    def _retraining(self, unit: Unit) -> dict[str, Any]:
        return {**self._training(unit), **self._measured(unit), "part": unit.part}

    def _trial(self, task: TuningTask, needs: tuple[Key, ...]) -> dict[str, Any]:
        assert task.arm is not None
        return {
            **self._measured(task.unit),
            "part": task.unit.part,
            "arm": task.arm.ingredients,
            "seed": self.settings.seed,
            "needs": [need.digest for need in needs],
        }

    def _measured(self, unit: Unit) -> dict[str, Any]:
        shadow = self.design[unit.shadow]
        return {
            "forget": array_digest(shadow.forget[unit.part]),
            "retain": array_digest(shadow.retained(unit.part)),
            "retain measured": array_digest(shadow.retained_measured(unit.part)),
            "validation": array_digest(shadow.validation),
            "held out": array_digest(shadow.held_out),
        }


def make_plan(
    settings: TuningSettings, data: ImageData, *, network_digest: str | None, design: tuple[TuningShadow, ...]
) -> TuningPlan:
    """The plan of a tuning on `data`."""
    return TuningPlan(settings, data.digest, network_digest, design)
