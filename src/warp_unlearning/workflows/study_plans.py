"""Every study of `warp reproduce` as planned jobs: those of shadows in cells, those of times and images in rows."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..config import ReproduceConfig
from ..data.preprocess import load_data
from ..defense.registry import make_defense
from ..errors import InputError
from ..methods.registry import make_method
from ..runs.store import Store
from ..studies.cell_plan import plan_cells
from ..studies.cell_settings import CellSettings
from ..studies.cell_work import CellWork
from ..studies.planned import Planned
from ..studies.reconstruction_study import plan_adaptive, plan_reconstruction
from ..studies.runtime_study import RUNS, plan_runtime
from ..studies.study import STUDIES, study_settings
from ..studies.study_results import shadows_complete, study_results
from ..studies.version_0_1 import ABOUT, stored_settings
from .study_asked import asked_of

AUDITED = "audited.npy"
_SEEDED = "Experiment only: what defences draw comes from a seed in the configuration, so anyone can undo it."
# Forgotten by fewer other shadows, a point tells too little of how its scores spread.
_FEWEST = 2.0
_ROWS = ("runtime", "reconstruction", "adaptive")
# Studies of the same arms, of which scores of version 0.1 are kept.
_KEPT = ("table1", "whitebox", "radar", "risk-vs-norm")
_NOT_FOR_CELLS = ("runs",)
_NOT_FOR_TIMES = ("shadows", "forget_sets", "pairs", "made_with")
_NOT_FOR_IMAGES = (
    *_NOT_FOR_TIMES,
    "runs",
    "defenses",
    "methods",
    "epochs",
    "recipes",
    "method_options",
    "defense_options",
)


def study_names() -> tuple[str, ...]:
    """Every study there is."""
    return (*STUDIES, *_ROWS)


def plan_study(config: ReproduceConfig) -> Planned:
    """The jobs of the study that a configuration names; an error where it asks for what cannot be measured."""
    return _plan_rows(config) if config.study in _ROWS else _plan_cells(config)


def _plan_cells(config: ReproduceConfig) -> Planned:
    _refuse(config, _NOT_FOR_CELLS)
    if config.made_with is None:
        settings = study_settings(config.study, config.size, asked_of(config))
        _require_arms(settings)
    else:
        settings = _stored_settings(config)
    _require_resolution(settings)
    plan = plan_cells(settings, load_data(**settings.data), defense_seed=config.defense_seed)
    audited = io.BytesIO()
    np.save(audited, plan.division.audited)

    def results(store: Store) -> dict[str, Any]:
        found = study_results(config.study, plan, store)
        found["audited"] |= {"data": settings.data["name"], "model": settings.network}
        return found | {"shadows_complete": shadows_complete(plan, store)}

    return Planned(
        plan.to_do,
        CellWork(plan, config.defense_seed),
        lambda key: str(plan.cells[key.digest]),
        results,
        said=(_SEEDED,) if config.made_with is None else (_SEEDED, ABOUT),
        files={AUDITED: audited.getvalue()},
    )


def _stored_settings(config: ReproduceConfig) -> CellSettings:
    if config.study not in _KEPT:
        raise InputError(f"results of version 0.1 are kept of {', '.join(_KEPT)}, not of {config.study}")
    return stored_settings(config.size, asked_of(config))


def _require_arms(settings: CellSettings) -> None:
    """Unknown names and settings are found before anything is trained."""
    for arm in settings.arms:
        make_method(arm.method, **arm.method_settings)
        if arm.defense is not None:
            make_defense(arm.defense, **arm.defense_settings)


def _require_resolution(settings: CellSettings) -> None:
    """An error where too few shadows forget a point to tell anything of it, or there are fewer shadows than pairs."""
    if settings.pairs > settings.shadows:
        raise InputError(
            f"pairs is {settings.pairs} and there are {settings.shadows} shadows; give at most one pair for each"
        )
    sets = min(arm.sets for arm in settings.arms)
    others = (settings.shadows / 2 - 1) * sets / settings.parts
    if others < _FEWEST:
        needed = 2 * (int(-(-_FEWEST * settings.parts // sets)) + 1)
        raise InputError(
            f"with {settings.shadows} shadows and {sets} of {settings.parts} forget sets a point is forgotten by "
            f"{others:.1f} other shadows on average, and the audit fits its scores on at least {_FEWEST:g}; give "
            f"--shadows {needed} or more, or more --forget-sets"
        )


def _plan_rows(config: ReproduceConfig) -> Planned:
    _refuse(config, _NOT_FOR_TIMES if config.study == "runtime" else _NOT_FOR_IMAGES)
    asked = asked_of(config)
    if config.study == "runtime":
        return plan_runtime(asked, config.size, runs=config.runs or RUNS, defense_seed=config.defense_seed)
    return (plan_reconstruction if config.study == "reconstruction" else plan_adaptive)(asked, config.size)


def _refuse(config: ReproduceConfig, names: Sequence[str]) -> None:
    """An error where a setting is given that the study does not use."""
    for name in names:
        if getattr(config, name) != ReproduceConfig.model_fields[name].get_default(call_default_factory=True):
            raise InputError(f"the study {config.study!r} has no use for {name}; leave it out")
