"""The jobs of a study of reconstruction, each under a key of everything that decides its result.

| kind | what it leaves | needs |
|---|---|---|
| image-model | weights of the model that is attacked | |
| image-prior | weights of the attacker's generator | |
| image-row | one attack on all targets of one arm: its scores, no images | the model, the generator where it is used |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..data.files import to_json
from ..data.preprocess import ImageData
from ..errors import InputError
from ..runs.jobs import Job
from ..runs.keys import Key
from ..runs.store import Store
from .reconstruction_models import ImageArm
from .reconstruction_rows import ImageAttack
from .reconstruction_settings import ReconstructionSettings

MODEL, PRIOR, ROW = "image-model", "image-prior", "image-row"
# A change of what a kind of job computes changes its number, so that results of before are not taken for it.
VERSIONS = {MODEL: 1, PRIOR: 1, ROW: 1}


@dataclass(frozen=True)
class ImageCell:
    """One attack on one arm; `about` is added to its row: what the arm is called, or what was swept."""

    arm: ImageArm
    attack: ImageAttack
    about: Mapping[str, Any]

    def __str__(self) -> str:
        named = [f"{name} {value}" for name, value in {**self.about, **self.attack.options}.items()]
        return ", ".join([self.attack.name, *named])


@dataclass(frozen=True, eq=False)
class ReconstructionPlan:
    """The key of the model and of the generator, None where no attack uses one; every job in an order that respects
    needs; and the cell of each row's digest.
    """

    settings: ReconstructionSettings
    model: Key
    prior: Key | None
    jobs: tuple[Job, ...]
    cells: Mapping[str, ImageCell]

    def to_do(self, store: Store) -> list[Job]:
        """All rows, and the models that those need which are not in the store yet."""
        rows = [job for job in self.jobs if job.key.kind == ROW]
        needed = {need for job in rows if not store.has(job.key) for need in job.needs}
        return [job for job in self.jobs if job.key.kind == ROW or job.key in needed]

    def told(self, key: Key) -> str:
        """What a job is, in words."""
        names = {MODEL: "training of the model that is attacked", PRIOR: "training of the generator"}
        return names.get(key.kind) or str(self.cells[key.digest])


def plan_images(settings: ReconstructionSettings, data: ImageData, cells: Sequence[ImageCell]) -> ReconstructionPlan:
    """A job for every cell, and those for the models they need."""
    model = Key(MODEL, VERSIONS[MODEL], to_json(_model(settings, data)))
    generative = any(cell.attack.generative for cell in cells)
    prior = Key(PRIOR, VERSIONS[PRIOR], to_json(_prior(settings, data))) if generative else None
    jobs = [Job(model, cost=5.0)] + ([] if prior is None else [Job(prior, cost=5.0)])
    found: dict[str, ImageCell] = {}
    arms: list[ImageArm] = []
    for cell in cells:
        if cell.arm not in arms:
            arms.append(cell.arm)
        needs = (model, prior) if prior is not None and cell.attack.generative else (model,)
        key = Key(ROW, VERSIONS[ROW], to_json(_row(settings, data, cell, needs)))
        if key.digest in found:
            raise InputError(f"{cell} does the same as {found[key.digest]}; leave one of them out")
        found[key.digest] = cell
        # Arms one after another: the models that forgot are kept in memory for one of them.
        jobs.append(Job(key, needs, order=arms.index(cell.arm)))
    return ReconstructionPlan(settings, model, prior, tuple(jobs), found)


def _images(settings: ReconstructionSettings, data: ImageData) -> dict[str, Any]:
    return {
        "data": data.digest,
        "shuffled": settings.shuffled,
        "learned": settings.learned,
        "seed": settings.seed,
        "device": settings.device.partition(":")[0],
    }


def _model(settings: ReconstructionSettings, data: ImageData) -> dict[str, Any]:
    recipe = {"epochs": settings.epochs, "batch_size": settings.batch, "lr": settings.lr}
    return {
        **_images(settings, data),
        "network": {"name": settings.network, "options": settings.network_options},
        "recipe": recipe if settings.trained else None,
    }


def _prior(settings: ReconstructionSettings, data: ImageData) -> dict[str, Any]:
    return {
        **_images(settings, data),
        "seen": settings.decoys + settings.probes,
        "recipe": {"epochs": settings.prior_epochs, "batch_size": settings.prior_batch},
        "width": settings.prior_width,
    }


def _row(settings: ReconstructionSettings, data: ImageData, cell: ImageCell, needs: Sequence[Key]) -> dict[str, Any]:
    return {
        **_images(settings, data),
        **{
            name: getattr(settings, name)
            for name in ("targets", "large_loss", "decoys", "probes", "rate", "ascent", "retained")
        },
        "arm": cell.arm.ingredients,
        "attack": asdict(cell.attack),
        "search": asdict(settings.search(cell.attack.name)),
        "needs": [need.digest for need in needs],
    }
