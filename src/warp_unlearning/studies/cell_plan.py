"""The jobs of a study, each under a key of everything that decides its result.

| kind | what it leaves | needs |
|---|---|---|
| original | weights of a shadow trained on its half of the points; they only serve the other jobs | |
| scores | confidence of the audited points under the original | original |
| cell | one forget set of one shadow by one arm: scores of the audited points and a summary, no weights | original |

A study grows shadow by shadow: shadow n is the same whatever the number of shadows, and a result of one machine is
found by its key on another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..attacks.membership.shadow_design import Mask, ShadowDesign, shadow_design
from ..data.files import array_digest, to_json
from ..data.preprocess import ImageData
from ..data.table import Index
from ..errors import InputError
from ..randomness import Streams
from ..runs.jobs import Job
from ..runs.keys import Key
from ..runs.store import Store
from .cell_settings import CellSettings

# A change of what a kind of job computes changes its number, so that results of before are not taken for it.
VERSIONS = {"original": 1, "scores": 2, "cell": 2}


@dataclass(frozen=True)
class Cell:
    """Which job: of which shadow and, for unlearned models, which forget set and arm it is."""

    kind: str
    shadow: int
    part: int = -1
    arm: str = ""

    def __str__(self) -> str:
        of = f"{self.kind}, shadow {self.shadow}"
        return f"{of}, set {self.part}, {self.arm}" if self.arm else of


@dataclass(frozen=True, eq=False)
class Division:
    """The training points of a data set: those held out as `validation`, the `pool` that shadows train on halves of,
    and the `audited` ones among the pool. Positions in the data set, ascending.
    """

    validation: Index
    pool: Index
    audited: Index


@dataclass(frozen=True, eq=False)
class CellPlan:
    """The division of the points, the design over the pool, every job in an order that respects needs, and what each
    key's digest stands for.
    """

    settings: CellSettings
    division: Division
    design: ShadowDesign
    jobs: tuple[Job, ...]
    cells: Mapping[str, Cell]

    def key(self, cell: Cell) -> Key:
        """The key of a job."""
        return self._keys[cell]

    def __contains__(self, cell: Cell) -> bool:
        return cell in self._keys

    @cached_property
    def _keys(self) -> dict[Cell, Key]:
        return {self.cells[job.key.digest]: job.key for job in self.jobs}

    def to_do(self, store: Store) -> list[Job]:
        """The jobs whose results are wanted, and the originals of those that are not in the store yet: the original of
        a shadow that is complete is not trained again where its weights are gone.
        """
        there = {job.key for job in self.jobs if store.has(job.key)}
        needed = {need for job in self.jobs if job.key not in there for need in job.needs}
        wanted = (job for job in self.jobs if job.key.kind != "original" or job.key in needed)
        return [replace(job, needs=()) if job.key in there else job for job in wanted]

    def forgotten(self, shadow: int, part: int) -> Index:
        """Positions in the data set of the points of a forget set."""
        return self._where(self.design.part[shadow] == part)

    def retained(self, shadow: int, part: int) -> Index:
        """Positions of what a shadow trained on and is to keep."""
        return self._where(self.design.trained[shadow] & (self.design.part[shadow] != part))

    def trained(self, shadow: int) -> Index:
        """Positions of what a shadow trains on."""
        return self._where(self.design.trained[shadow])

    def never(self, shadow: int) -> Index:
        """Positions of what a shadow never sees."""
        return self._where(~self.design.trained[shadow])

    def _where(self, mask: Mask) -> Index:
        return np.asarray(self.division.pool[mask], dtype=np.int64)


def divide(settings: CellSettings, count: int) -> Division:
    """Draw validation and audited points out of `count`."""
    if settings.validation + max(settings.audited, 2 * settings.parts) > count:
        raise InputError(
            f"{settings.validation} validation and {settings.audited} audited points from {count} training examples; "
            "ask for fewer"
        )
    generator = np.random.default_rng(Streams(settings.seed, "study").number("division"))
    order = generator.permutation(count)
    held_out, pool = order[: settings.validation], order[settings.validation :]
    return Division(np.sort(held_out), np.sort(pool), np.sort(pool[: settings.audited]))


def plan_cells(settings: CellSettings, data: ImageData, *, defense_seed: int) -> CellPlan:
    """Plan a study of the training points of `data`. What defences draw comes from `defense_seed`: a study is an
    experiment that others are to repeat, and protects nobody.
    """
    division = divide(settings, len(data.train))
    generator = np.random.default_rng(Streams(settings.seed, "study").number("design", settings.first_shadow))
    design = shadow_design(
        len(division.pool), shadows=settings.shadows, forget_sets=settings.parts, generator=generator
    )
    unkeyed = CellPlan(settings, division, design, (), {})
    cells: dict[str, Cell] = {}
    jobs: list[Job] = []

    def add(cell: Cell, ingredients: Mapping[str, Any], needs: Sequence[Key], cost: float) -> Key:
        found = to_json({**ingredients, "needs": [need.digest for need in needs]})
        key = Key(cell.kind, VERSIONS[cell.kind], found)
        if key.digest in cells:
            raise InputError(f"{cell} does the same as {cells[key.digest]}; leave one of the arms out")
        cells[key.digest] = cell
        jobs.append(Job(key, tuple(needs), cost, order=cell.shadow))
        return key

    audited = {"data": data.digest, "audited": array_digest(division.audited)}
    for shadow in range(settings.shadows):
        original = add(Cell("original", shadow), _training(unkeyed, data, shadow), (), cost=20.0)
        add(Cell("scores", shadow), audited, (original,), cost=0.1)
        for part in range(settings.parts):
            sets = {
                "forget": array_digest(unkeyed.forgotten(shadow, part)),
                "retain": array_digest(unkeyed.retained(shadow, part)),
                "validation": array_digest(division.validation),
            }
            for arm in (arm for arm in settings.arms if part < arm.sets):
                about = {
                    **audited,
                    **sets,
                    "arm": arm.ingredients,
                    "seed": settings.seed,
                    "defense_seed": defense_seed if arm.defense is not None else None,
                    "pair": settings.pair_examples if is_paired(settings, shadow, part) else 0,
                }
                add(Cell("cell", shadow, part, arm.name), about, (original,), cost=2.0)
    return CellPlan(settings, division, design, tuple(jobs), cells)


def is_paired(settings: CellSettings, shadow: int, part: int) -> bool:
    """Whether the weights of models that forgot this set are attacked: the first set of the first shadows."""
    return part == 0 and shadow < settings.pairs


def _training(plan: CellPlan, data: ImageData, shadow: int) -> dict[str, Any]:
    settings = plan.settings
    return {
        "data": data.digest,
        "network": {"name": settings.network, "options": settings.network_options},
        "recipe": settings.training,
        "trained": array_digest(plan.trained(shadow)),
        "seed": settings.seed,
        "shadow": settings.first_shadow + shadow,
        "device": settings.device.partition(":")[0],
    }
