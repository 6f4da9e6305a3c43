"""The jobs of a shadow audit, each under a key of everything that decides its result.

| kind | what it does | needs |
|---|---|---|
| train | a shadow on its half of the points | |
| unlearn | one forget set of one shadow, by one arm | train |
| score | confidence of every point under a model, accuracies, gradient norms of the forgotten | train, unlearn |
| pair | attacks on the weights of an original and its unlearned model | train, unlearn |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..attacks.membership.shadow_design import ShadowDesign, shadow_design
from ..data.files import array_digest, to_json
from ..data.preprocess import ImageData
from ..data.table import Index
from ..randomness import Streams
from ..runs.jobs import Job
from ..runs.keys import Key
from .shadow_settings import Arm, ShadowSettings

# A change of what a kind of job computes changes its number, so that results of before are not taken for it.
VERSIONS = {"train": 1, "unlearn": 1, "score": 1, "pair": 1}
ORIGINAL = -1


@dataclass(frozen=True)
class Task:
    """Which job of the audit: of which shadow and, for unlearned models, which forget set and arm (−1: the original)
    it is.
    """

    kind: str
    shadow: int
    part: int = ORIGINAL
    arm: int = ORIGINAL

    def __str__(self) -> str:
        of = f"shadow {self.shadow}"
        return f"{self.kind}, {of}" if self.arm == ORIGINAL else f"{self.kind}, {of}, set {self.part}, arm {self.arm}"


@dataclass(frozen=True, eq=False)
class ShadowPlan:
    """The design, every job in an order that respects needs, and the task behind each key's digest."""

    settings: ShadowSettings
    design: ShadowDesign
    jobs: tuple[Job, ...]
    tasks: Mapping[str, Task]

    def __contains__(self, task: Task) -> bool:
        return task in self._keys

    def key(self, task: Task) -> Key:
        """The key of a task."""
        return self._keys[task]

    @cached_property
    def _keys(self) -> dict[Task, Key]:
        return {self.tasks[job.key.digest]: job.key for job in self.jobs}


def plan_shadows(
    settings: ShadowSettings,
    data: ImageData,
    *,
    network_digest: str | None,
    secret_name: str | int | None = None,
) -> ShadowPlan:
    """Plan the audit of the training points of `data`. `secret_name` stands in keys for what defences draw from."""
    generator = np.random.default_rng(Streams(settings.seed, "shadow audit").number("design"))
    design = shadow_design(
        len(data.train),
        shadows=settings.shadows,
        forget_sets=settings.forget_sets,
        generator=generator,
        share=settings.share,
    )
    keys: dict[Task, Key] = {}
    jobs: list[Job] = []

    def add(task: Task, ingredients: Mapping[str, Any], needs: Sequence[Task], cost: float) -> None:
        found = to_json({**ingredients, "needs": [keys[need].digest for need in needs]})
        keys[task] = Key(task.kind, VERSIONS[task.kind], found)
        jobs.append(Job(keys[task], tuple(keys[need] for need in needs), cost))

    for shadow in range(settings.shadows):
        train = Task("train", shadow)
        add(train, _training(settings, data, network_digest, design, shadow), (), cost=8.0)
        add(Task("score", shadow), {"points": data.digest}, (train,), cost=0.3)
    for task in unlearnings(settings):
        train = Task("train", task.shadow)
        add(task, _unlearning(settings, design, task, secret_name), (train,), cost=2.0)
        add(Task("score", task.shadow, task.part, task.arm), {"points": data.digest}, (train, task), cost=0.3)
        if is_paired(settings, task):
            about = {"points": data.digest, "seed": settings.seed}
            add(Task("pair", task.shadow, task.part, task.arm), about, (train, task), cost=5.0)
    return ShadowPlan(settings, design, tuple(jobs), {key.digest: task for task, key in keys.items()})


def unlearnings(settings: ShadowSettings) -> Iterator[Task]:
    """Every unlearning, shadow by shadow, set by set, arm by arm."""
    for shadow in range(settings.shadows):
        for part in range(settings.forget_sets):
            for arm in range(len(settings.arms)):
                yield Task("unlearn", shadow, part, arm)


def is_paired(settings: ShadowSettings, task: Task) -> bool:
    """Whether the weights of this model are attacked: the first set of the first shadows."""
    return task.part == 0 and task.shadow < settings.pairs


def forgotten(design: ShadowDesign, shadow: int, part: int) -> Index:
    """The points of a forget set."""
    return np.flatnonzero(design.part[shadow] == part)


def retained(design: ShadowDesign, shadow: int, part: int) -> Index:
    """The points that a shadow trained on and is to keep."""
    return np.flatnonzero(design.trained[shadow] & (design.part[shadow] != part))


def _training(
    settings: ShadowSettings, data: ImageData, network_digest: str | None, design: ShadowDesign, shadow: int
) -> dict[str, Any]:
    return {
        "data": data.digest,
        "network": {"name": settings.network, "options": settings.network_options, "file": network_digest},
        "recipe": settings.training,
        "loss": "cross entropy",
        "trained": array_digest(np.flatnonzero(design.trained[shadow])),
        "seed": settings.seed,
        "shadow": shadow,
        "device": settings.device.partition(":")[0],
    }


def _unlearning(
    settings: ShadowSettings, design: ShadowDesign, task: Task, secret_name: str | int | None
) -> dict[str, Any]:
    arm: Arm = settings.arms[task.arm]
    return {
        "forget": array_digest(forgotten(design, task.shadow, task.part)),
        "retain": array_digest(retained(design, task.shadow, task.part)),
        "arm": arm.ingredients,
        "seed": settings.seed,
        "defense_seed": secret_name if arm.defense is not None else None,
    }
