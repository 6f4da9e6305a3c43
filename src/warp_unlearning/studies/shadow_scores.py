"""The scores of a shadow audit's models as arrays, gathered from the store, without models that could not be made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..attacks.membership.shadow_design import Mask
from ..runs.store import Store
from .shadow_plan import ShadowPlan, Task, forgotten, retained, unlearnings
from .shadow_work import ABOUT, SCORES
from .stored import arrays_of

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class OriginalScores:
    """Confidences of the originals, shape (shadows, points), which shadows they are, what each trained on, and the
    test accuracy of each.
    """

    confidence: Floats
    shadows: NDArray[np.int64]
    trained: Mask
    accuracy: Floats


@dataclass(frozen=True, eq=False)
class ArmScores:
    """The unlearned models of one arm: confidences (models, points), the shadow of each, what each forgot, never saw
    and kept; accuracies and seconds of each model; gradient energies of forgotten points, in the order of the mask's
    entries; what the attacks on pairs found, and the shadow and forget set of each pair; and how many models are
    missing.
    """

    confidence: Floats
    groups: NDArray[np.int64]
    forgotten: Mask
    never: Mask
    kept: Mask
    accuracy: Mapping[str, Floats]
    seconds: Floats
    energy: Floats
    pairs: tuple[dict[str, Any], ...]
    paired: tuple[tuple[int, int], ...]
    missing: int


def original_scores(plan: ShadowPlan, store: Store) -> OriginalScores:
    """Those originals whose scores are there."""
    shadows = [s for s in range(plan.settings.shadows) if store.has(plan.key(Task("score", s)))]
    found = [_scores(plan, store, Task("score", s)) for s in shadows]
    shape = (0, plan.design.trained.shape[1])
    return OriginalScores(
        np.stack([s["confidence"].astype(np.float64) for s in found]) if found else np.empty(shape),
        np.array(shadows, dtype=np.int64),
        plan.design.trained[shadows] if shadows else np.empty(shape, dtype=bool),
        np.array([float(s["test_accuracy"]) for s in found]),
    )


def arm_scores(plan: ShadowPlan, store: Store, arm: int) -> ArmScores:
    """Those unlearned models of an arm whose scores are there."""
    asked = [task for task in unlearnings(plan.settings) if task.arm == arm]
    there = [t for t in asked if store.has(plan.key(_as(t, "score"))) and store.has(plan.key(t))]
    scores = [_scores(plan, store, _as(t, "score")) for t in there]
    seconds = [store.read(plan.key(t)).seconds for t in there]
    design = plan.design
    rows = [(t.shadow, t.part) for t in there]
    shape = (len(there), design.trained.shape[1])
    masks = {name: np.zeros(shape, dtype=bool) for name in ("forgotten", "never", "kept")}
    for i, (shadow, part) in enumerate(rows):
        masks["forgotten"][i, forgotten(design, shadow, part)] = True
        masks["kept"][i, retained(design, shadow, part)] = True
        masks["never"][i] = ~design.trained[shadow]
    correct = [s["correct"].astype(bool) for s in scores]
    accuracy = {
        what: np.array([row[masks[mask][i]].mean() for i, row in enumerate(correct)])
        for what, mask in (("forget", "forgotten"), ("retain", "kept"))
    }
    accuracy["test"] = np.array([float(s["test_accuracy"]) for s in scores])
    pairs = [t for t in (_as(t, "pair") for t in there) if t in plan and store.has(plan.key(t))]
    return ArmScores(
        np.stack([s["confidence"].astype(np.float64) for s in scores]) if scores else np.empty(shape),
        np.array([shadow for shadow, _ in rows], dtype=np.int64),
        masks["forgotten"],
        masks["never"],
        masks["kept"],
        accuracy,
        np.array([value for value in seconds if value is not None], dtype=np.float64),
        np.concatenate([s["energy"].astype(np.float64) for s in scores]) if scores else np.empty(0),
        tuple(_about(plan, store, t) for t in pairs),
        tuple((t.shadow, t.part) for t in pairs),
        len(asked) - len(there),
    )


def _as(task: Task, kind: str) -> Task:
    return Task(kind, task.shadow, task.part, task.arm)


def _scores(plan: ShadowPlan, store: Store, task: Task) -> dict[str, NDArray[np.generic]]:
    return arrays_of(store.read(plan.key(task)).read(SCORES))


def _about(plan: ShadowPlan, store: Store, task: Task) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(store.read(plan.key(task)).read(ABOUT))
    return found
