"""The scores of a study's models as arrays, gathered from the store, without models that could not be made."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..runs.store import Store
from .cell_plan import Cell, CellPlan
from .cell_settings import StudyArm
from .cell_work import ABOUT, SCORES
from .shadow_scores import ArmScores, OriginalScores
from .stored import arrays_of


def cell_original_scores(plan: CellPlan, store: Store) -> OriginalScores:
    """Those originals whose scores are there, over the audited points."""
    shadows = [s for s in range(plan.settings.shadows) if store.has(plan.key(Cell("scores", s)))]
    rows = [_arrays(plan, store, Cell("scores", s))["confidence"].astype(np.float64) for s in shadows]
    columns = _columns(plan)
    shape = (0, len(columns))
    return OriginalScores(
        np.stack(rows) if rows else np.empty(shape),
        np.array(shadows, dtype=np.int64),
        plan.design.trained[shadows][:, columns] if shadows else np.empty(shape, dtype=bool),
        np.array([_about(plan, store, Cell("scores", s))["accuracy"]["test"] for s in shadows], dtype=np.float64),
    )


def cell_arm_scores(plan: CellPlan, store: Store, arm: StudyArm) -> ArmScores:
    """Those unlearned models of an arm that are there and did not diverge, over the audited points."""
    asked = [Cell("cell", s, part, arm.name) for s in range(plan.settings.shadows) for part in range(arm.sets)]
    told = {cell: _about(plan, store, cell) for cell in asked if store.has(plan.key(cell))}
    there = [cell for cell, about in told.items() if "diverged" not in about]
    paired = [cell for cell in there if "pair" in told[cell]]
    scores = [_arrays(plan, store, cell) for cell in there]
    columns, design = _columns(plan), plan.design
    shadows, parts = ([getattr(cell, name) for cell in there] for name in ("shadow", "part"))
    trained, part_of = design.trained[shadows][:, columns], design.part[shadows][:, columns]
    forgotten = part_of == np.array(parts, dtype=np.int16)[:, None]
    accuracy = {
        what: np.array([told[cell]["accuracy"][what] for cell in there]) for what in ("forget", "retain", "test")
    }
    return ArmScores(
        np.stack([s["confidence"].astype(np.float64) for s in scores]) if scores else np.empty((0, len(columns))),
        np.array(shadows, dtype=np.int64),
        forgotten.reshape(len(there), len(columns)),
        ~trained,
        trained & ~forgotten,
        accuracy,
        np.array([s for cell in there if (s := told[cell]["seconds"]) is not None], dtype=np.float64),
        np.concatenate([s["energy"].astype(np.float64) for s in scores]) if scores else np.empty(0),
        tuple(told[cell]["pair"] for cell in paired),
        tuple((cell.shadow, cell.part) for cell in paired),
        len(asked) - len(there),
    )


def cell_summaries(plan: CellPlan, store: Store, arm: StudyArm) -> list[dict[str, Any]]:
    """What is known of each model of an arm that is there beside its scores, those that diverged included."""
    asked = [Cell("cell", s, part, arm.name) for s in range(plan.settings.shadows) for part in range(arm.sets)]
    return [
        {"shadow": cell.shadow, "part": cell.part, **_about(plan, store, cell)}
        for cell in asked
        if store.has(plan.key(cell))
    ]


def _columns(plan: CellPlan) -> NDArray[np.int64]:
    """Where the audited points stand in the pool that the design is over."""
    return np.searchsorted(plan.division.pool, plan.division.audited)


def _arrays(plan: CellPlan, store: Store, cell: Cell) -> dict[str, NDArray[np.generic]]:
    return arrays_of(store.read(plan.key(cell)).read(SCORES))


def _about(plan: CellPlan, store: Store, cell: Cell) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(store.read(plan.key(cell)).read(ABOUT))
    return found
