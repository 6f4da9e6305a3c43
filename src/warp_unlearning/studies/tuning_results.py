"""What a tuning found, as plain data with a schema version: every trial of every arm, the chosen ones, the frontier."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ..data.files import to_json
from ..runs.store import Store
from .tuning_choice import chosen_trial, on_frontier
from .tuning_objectives import NAMES, Objectives, mean_objectives, norm
from .tuning_plan import RETRAIN, TuningPlan, TuningTask, Unit
from .tuning_search import Trial
from .tuning_settings import TunedArm
from .tuning_work import ABOUT

SCHEMA_VERSION = 1
TOLERANCE = 0.01
"""How much less accurate than the base's chosen trial one may be to be compared with it."""

ORACLE = (
    "The objectives compare each trial with a model retrained without the forgotten points. Whoever unlearns in "
    "earnest has no such model: these settings were chosen with an oracle, for base and defended arms alike."
)
SIZE = (
    "The numbers of a tuning choose settings and are no results: the chosen trial is the best of several on these very "
    "points, so its objectives are too good."
)


CHOSEN = ("method_settings", "defense_settings", "objectives", "norm", "accuracy", "held_out_accuracy", "advantage")
"""What is told of a chosen trial."""


def tuning_results(plan: TuningPlan, store: Store, trials: Mapping[str, Sequence[Trial]]) -> dict[str, Any]:
    """All arms; `trials` has those of each by its name. What the run itself knows is added by its caller."""
    settings, first = plan.settings, plan.design[0]
    audited = int((~first.measured).sum())
    found: dict[str, Any] = to_json(
        {
            "schema_version": SCHEMA_VERSION,
            "kind": "tuning",
            "notes": [ORACLE, _apart(plan, audited), SIZE],
            "objectives": list(NAMES),
            "search": {
                "trials": settings.trials,
                "sampler": settings.sampler,
                "population": settings.population,
                "seed": settings.seed,
            },
            "tuned_on": {
                "shadows": [shadow.number for shadow in plan.design],
                "forget_sets": settings.forget_sets,
                "training_examples": len(first.trained),
                "forgotten": len(first.forget[0]),
                "validation": len(first.validation),
                "held_out": len(first.held_out),
                "points": int(first.measured.sum()),
                "audited_points_left_out": audited,
                "test_part_used": False,
            },
            "retrained": _oracle(plan, store),
            "arms": [_arm(plan, store, arm, trials[arm.name]) for arm in settings.arms],
        }
    )
    return found


def frontier(results: Mapping[str, Any]) -> dict[str, Any]:
    """Of each arm the complete trials as points: accuracy on held-out points against membership advantage on them."""
    arms = []
    for arm in results["arms"]:
        done = [trial for trial in arm["trials"] if trial["state"] == "complete"]
        best = on_frontier([t["held_out_accuracy"] for t in done], [t["advantage"] for t in done])
        points = [
            {
                "trial": trial["number"],
                "accuracy": trial["held_out_accuracy"],
                "advantage": trial["advantage"],
                "pareto": pareto,
                "chosen": arm["chosen"] is not None and trial["number"] == arm["chosen"]["trial"],
            }
            for trial, pareto in zip(done, best, strict=True)
        ]
        arms.append({"name": arm["name"], "method": arm["method"], "defense": arm["defense"], "points": points})
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "tuning frontier",
        "accuracy": "on points that no shadow of the tuning trained on and that the objectives do not use",
        "advantage": "2 |mia - 1/2|, forgotten points against those, by the attack of the objectives",
        "notes": results["notes"],
        "retrained": results["retrained"],
        "arms": arms,
        "matched": [found for method in _methods(arms) if (found := _matched(arms, method)) is not None],
    }


def _methods(arms: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(arm["method"] for arm in arms))


def _matched(arms: Sequence[Mapping[str, Any]], method: str) -> dict[str, Any] | None:
    """Of each arm of a method the trial of least advantage among those as accurate as the base's chosen one, less a
    point; None where the base has none.
    """
    mine = [arm for arm in arms if arm["method"] == method]
    base = [p for arm in mine if arm["defense"] is None for p in arm["points"] if p["chosen"]]
    if not base:
        return None
    least = base[0]["accuracy"] - TOLERANCE
    found = {}
    for arm in mine:
        enough = [p for p in arm["points"] if p["accuracy"] >= least]
        best = min(enough, key=lambda p: (p["advantage"], p["trial"]), default=None)
        found[arm["name"]] = best and {name: best[name] for name in ("trial", "accuracy", "advantage")}
    return {"method": method, "accuracy_at_least": least, "arms": found}


def _apart(plan: TuningPlan, audited: int) -> str:
    numbers = [shadow.number for shadow in plan.design]
    shown = f"shadow {numbers[0]}" if len(numbers) == 1 else f"shadows {numbers[0]} to {numbers[-1]}"
    apart = f"Tuned on {shown}, whose halves of the data no audit uses (audits number theirs from 0)"
    if audited:
        return f"{apart}. Neither the {audited} points that are audited nor the test part were forgotten or measured."
    return (
        f"{apart}, and not on the test part. No audited points were named: a point may be tuned on here, audited there."
    )


def _oracle(plan: TuningPlan, store: Store) -> dict[str, Any]:
    """What the retrained models say: where a perfect unlearning would lie, up to the draw."""
    found = [_about(plan, store, TuningTask(RETRAIN, unit)) for unit in plan.units()]
    return {
        "accuracy": {name: _mean([f["accuracy"][name] for f in found]) for name in found[0]["accuracy"]},
        "membership": _mean([2 * abs(f["mia"] - 0.5) for f in found]),
        "advantage": _mean([2 * abs(f["mia_held_out"] - 0.5) for f in found]),
    }


def _arm(plan: TuningPlan, store: Store, arm: TunedArm, trials: Sequence[Trial]) -> dict[str, Any]:
    rows = [_row(plan, store, arm, trial) for trial in trials]
    best = chosen_trial(trials)
    chosen = None
    if best is not None:
        row = rows[best.number]
        chosen = {"trial": best.number, **{name: row[name] for name in CHOSEN}}
    return {
        "name": arm.name,
        "method": arm.start.method,
        "defense": arm.start.defense,
        "start": asdict(arm.start),
        "space": {name: asdict(found) for name, found in arm.space.items()},
        "complete": sum(trial.state == "complete" for trial in trials),
        "failed": sum(trial.state == "failed" for trial in trials),
        "chosen": chosen,
        "trials": rows,
    }


def _row(plan: TuningPlan, store: Store, arm: TunedArm, trial: Trial) -> dict[str, Any]:
    tried = arm.arm(trial.values)
    row: dict[str, Any] = {
        "number": trial.number,
        "state": trial.state,
        "reason": trial.reason or None,
        "method_settings": dict(tried.method_settings),
        "defense_settings": dict(tried.defense_settings),
        "objectives": None,
    }
    if trial.objectives is None:
        return row
    tasks = [planned.task for planned in plan.trial(tried)]
    found = [_about(plan, store, task) for task in tasks]
    return row | {
        "objectives": dict(zip(NAMES, trial.objectives, strict=True)),
        "norm": norm(trial.objectives),
        "accuracy": {name: _mean([f["accuracy"][name] for f in found]) for name in found[0]["accuracy"]},
        "held_out_accuracy": _mean([f["accuracy"]["held_out"] for f in found]),
        "advantage": _mean([2 * abs(f["mia_held_out"] - 0.5) for f in found]),
        "units": [{**_unit(plan, task.unit), **f} for task, f in zip(tasks, found, strict=True)],
    }


def told(plan: TuningPlan, store: Store, arm: TunedArm, trial: Trial) -> tuple[Objectives | None, str]:
    """The objectives of a trial, the mean over its units; None and the reason where one of them diverged."""
    found: list[Objectives] = []
    for task, _ in plan.trial(arm.arm(trial.values)):
        about = _about(plan, store, task)
        if "diverged" in about:
            place = _unit(plan, task.unit)
            return None, f"shadow {place['shadow']}, forget set {place['forget_set']}: {about['diverged']}"
        found.append(tuple(about["objectives"]))
    return mean_objectives(found), ""


def _unit(plan: TuningPlan, unit: Unit) -> dict[str, int]:
    return {"shadow": plan.design[unit.shadow].number, "forget_set": unit.part}


def _about(plan: TuningPlan, store: Store, task: TuningTask) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(store.read(plan.key(task)).read(ABOUT))
    return found


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
