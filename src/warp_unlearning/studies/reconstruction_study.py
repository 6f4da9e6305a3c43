"""The studies of reconstruction: every attack on every arm, and the adaptive attacker by either side's spread."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from ..data.files import to_json
from ..data.preprocess import load_data
from ..models.modes import choose_device
from ..runs.store import Store
from .planned import Planned
from .reconstruction_models import ImageArm
from .reconstruction_plan import ROW, ImageCell, ReconstructionPlan, plan_images
from .reconstruction_rows import ImageAttack
from .reconstruction_settings import ReconstructionSettings, reconstruction_settings
from .reconstruction_work import FOUND, ReconstructionWork
from .study import DEFENSES, Asked

SCHEMA_VERSION = 1
ATTACKS = (
    "differencing",
    "inversion",
    "filtered",
    "generative",
    "adaptive",
    "canonical",
    "span",
    "filter",
    "conservation",
    "scale-free",
    "input-layer",
    "joint",
    "generative@canonical",
    "generative@filter",
    "generative@filtered",
    "generative@scale-free",
)
ARMS = tuple(defense or "none" for defense in DEFENSES)
SPREADS, SIGMAS = (0.1, 0.2, 0.4, 0.8), (0.0, 0.1, 0.2, 0.4, 0.8)
_SAID = (
    "One image is forgotten at a time by one step of NegGrad+ beside a retain batch of 5: methods, shadows and forget "
    "sets play no part."
)


def plan_reconstruction(
    asked: Asked,
    size_name: str,
    *,
    arms: Sequence[str] = ARMS,
    attacks: Sequence[str] = ATTACKS,
    settings: ReconstructionSettings | None = None,
) -> Planned:
    """Every attack on every arm. `settings` are those of the size as asked, unless others are given."""
    cells = [
        ImageCell(ImageArm(arm, asked.defense_options.get(arm, {})), image_attack(attack), {"arm": arm})
        for arm in arms
        for attack in attacks
    ]
    return _planned("reconstruction", settings or reconstruction_settings(asked, size_name), cells)


def plan_adaptive(
    asked: Asked,
    size_name: str,
    *,
    spreads: Sequence[float] = SPREADS,
    sigmas: Sequence[float] = SIGMAS,
    settings: ReconstructionSettings | None = None,
) -> Planned:
    """The attacker who fits image and factors together, by the σ of its prior on the factors and by the defender's
    spread of them; and beside it inversion of the difference as it is, and after the factors are undone.
    """
    cells = [
        ImageCell(
            ImageArm("cob", {**asked.defense_options.get("cob", {}), "spread": spread}), attack, {"spread": spread}
        )
        for spread in spreads
        for attack in adaptive_attacks(sigmas)
    ]
    return _planned("adaptive", settings or reconstruction_settings(asked, size_name), cells)


def image_attack(name: str) -> ImageAttack:
    """The attack, an adaptive one in the order of the paper's: it moves first and steps then."""
    return ImageAttack(name, {"order": "before"} if name == "adaptive" else {})


def adaptive_attacks(sigmas: Sequence[float]) -> list[ImageAttack]:
    """The adaptive attacker with each prior, and the two beside it."""
    adaptive = [ImageAttack("adaptive", {"sigma": sigma, "order": "before"}) for sigma in sigmas]
    return [*adaptive, ImageAttack("inversion"), ImageAttack("canonical")]


def _planned(name: str, settings: ReconstructionSettings, cells: Sequence[ImageCell]) -> Planned:
    plan = plan_images(settings, load_data(**settings.data), cells)
    return Planned(
        plan.to_do,
        ReconstructionWork(plan),
        plan.told,
        partial(reconstruction_results, name, plan),
        # A search takes what half of a GPU's memory holds.
        alone=choose_device(settings.device).type == "cuda",
        said=(_SAID,),
    )


def reconstruction_results(name: str, plan: ReconstructionPlan, store: Store) -> dict[str, Any]:
    """A row for every attack on every arm that was made; those that were not are said to be missing."""
    jobs = [job for job in plan.jobs if job.key.kind == ROW]
    settings = {key: value for key, value in asdict(plan.settings).items() if key != "data"}
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "study",
        "study": name,
        "rows": [json.loads(store.read(job.key).read(FOUND)) for job in jobs if store.has(job.key)],
        "missing": [plan.told(job.key) for job in jobs if not store.has(job.key)],
        "settings": to_json({"data": plan.settings.data["name"], **settings}),
    }
