"""What a study found, as plain data: the rows of a shadow audit with what a study adds to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ..data.files import to_json
from ..runs.store import Store
from ..stats.intervals import mean
from .arm_audits import paired_audits
from .arm_rows import arm_rows
from .cell_plan import CellPlan
from .cell_scores import cell_arm_scores, cell_original_scores, cell_summaries
from .cell_settings import StudyArm
from .pair_means import mean_area, mean_rates
from .shadow_results import NOT_TESTED, THREAT
from .shadow_scores import ArmScores

SCHEMA_VERSION = 2


def study_results(name: str, plan: CellPlan, store: Store) -> dict[str, Any]:
    """The arms of the results; what the run itself knows is added by its caller."""
    settings = plan.settings
    scores = [cell_arm_scores(plan, store, arm) for arm in settings.arms]
    rows = arm_rows(settings.arms, scores, cell_original_scores(plan, store))
    for i, (arm, row) in enumerate(zip(settings.arms, rows, strict=True)):
        summaries = cell_summaries(plan, store, arm)
        row |= {
            "method": arm.shown_method,
            "defense": arm.shown_defense,
            "swept": dict(arm.swept),
            "sets": arm.sets,
            "shadows": len(np.unique(scores[i].groups)),
            "against": _against(settings.arms, scores, i),
            "pair_attacks": _pair_attacks(scores[i]),
            "diverged": sum("diverged" in summary for summary in summaries),
            "moved": _mean([s["moved"] for s in summaries if "moved" in s]),
            "teleports": _teleports(summaries),
        }
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "study",
        "study": name,
        "audited": {
            "shadows": settings.shadows,
            "forget_sets": max(arm.sets for arm in settings.arms),
            "points": len(plan.division.audited),
            "forgotten_share": 1.0,
            "forget_set_size": round(float(np.mean([(row == 0).sum() for row in plan.design.part]))),
            "training_examples": int(plan.design.trained[0].sum()),
            "seed": settings.seed,
        },
        "threat": list(THREAT),
        "not_tested": list(NOT_TESTED),
        "arms": to_json(rows),
        "originals_trained_again": _trained_again(plan, store),
        "made_on": _made_on(plan, store),
    }


def _against(arms: Sequence[StudyArm], scores: Sequence[ArmScores], index: int) -> dict[str, Any]:
    """One arm beside each other defence of its method at the same sweep, over the shadows that both have: how much
    lower its AUC is, and how much higher its test accuracy.
    """
    found: dict[str, Any] = {}
    arm = arms[index]
    for i, other in enumerate(arms):
        alike = other.method == arm.method and dict(other.swept) == dict(arm.swept) and i != index
        if not alike or other.shown_defense is None:
            continue
        audits = paired_audits(scores[i], scores[index])
        accuracy = _higher_accuracy(scores[index], scores[i])
        if audits is None and accuracy is None:
            continue
        found[other.shown_defense] = {
            "auc": None if audits is None else asdict(audits[0].compare(audits[1]).difference),
            "test_accuracy": accuracy,
        }
    return found


def _higher_accuracy(ours: ArmScores, theirs: ArmScores) -> dict[str, Any] | None:
    """The mean difference of test accuracies over shadows, each the mean over its models."""
    shadows = np.intersect1d(ours.groups, theirs.groups)
    return _mean([float(_test_accuracy(ours, s) - _test_accuracy(theirs, s)) for s in shadows])


def _test_accuracy(scores: ArmScores, shadow: int) -> float:
    return float(scores.accuracy["test"][scores.groups == shadow].mean())


def _pair_attacks(scores: ArmScores) -> list[dict[str, Any]]:
    """Every attack on the weights of two models: its mean AUC over pairs and its mean rates, each at the threshold of
    its own pair (`pair_means`).
    """
    rows: dict[str, list[dict[str, Any]]] = {}
    for pair in scores.pairs:
        for row in pair["rows"]:
            rows.setdefault(row["name"], []).append(row)
    return [
        {"name": name, "auc": mean_area(of), "pairs": len(of), "rates": mean_rates(of)} for name, of in rows.items()
    ]


def _teleports(summaries: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """How many an unlearning makes, the shares that were taken back and that moved nothing (those taken back among
    them), and by what factor one changes the energy.
    """
    made = [s["teleports"] for s in summaries if s.get("teleports", {}).get("count")]
    if not made:
        return None
    pairs = [p for t in made for p in zip(t["energy_before"], t["energy_after"], strict=True)]
    ratios = [after / before for before, after in pairs if before and after is not None]
    count = sum(t["count"] for t in made)
    return {
        "count": _mean([float(t["count"]) for t in made]),
        "taken_back": sum(t["taken_back"] for t in made) / count,
        "unmoved": sum(distance == 0 for t in made for distance in t["moved"]) / count,
        "energy_factor": _mean(ratios) if ratios else None,
    }


def _made_on(plan: CellPlan, store: Store) -> list[str]:
    """The machines that made the models, as far as these say."""
    summaries = (summary for arm in plan.settings.arms for summary in cell_summaries(plan, store, arm))
    return sorted({summary["made_on"] for summary in summaries if "made_on" in summary})


def _trained_again(plan: CellPlan, store: Store) -> list[int]:
    """The shadows whose models do not all descend from the same weights: their original was trained again, by another
    version say, which was not the same to the bit.
    """
    found: dict[int, set[str]] = {}
    for arm in plan.settings.arms:
        for summary in cell_summaries(plan, store, arm):
            found.setdefault(summary["shadow"], set()).add(summary["original"])
    return sorted(shadow for shadow, digests in found.items() if len(digests) > 1)


def shadows_complete(plan: CellPlan, store: Store) -> int:
    """How many shadows have every result."""
    missing = {
        cell.shadow
        for cell in (plan.cells[job.key.digest] for job in plan.jobs if not store.has(job.key))
        if cell.kind != "original"
    }
    return plan.settings.shadows - len(missing)


def _mean(values: Sequence[float]) -> dict[str, Any] | None:
    return asdict(mean(values)) if len(values) else None
