"""The chosen settings as recipes that other commands load, with where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .tuning_results import CHOSEN

MATCHED = (
    "Chosen here: of each arm the trial with the least membership advantage on held-out points, among those that are "
    "at most a point less accurate there than the base's trial of the smallest norm."
)
SCHEMA_VERSION = 1


def recipes(results: Mapping[str, Any], provenance: Mapping[str, Any]) -> dict[str, Any]:
    """One entry an arm with a chosen trial, in the form in which a shadow audit takes settings: `methods`,
    `method_options`, `defenses`, `defense_options`. Base and defended arms have settings of their own.
    """
    arms = [
        {
            "method": arm["method"],
            "defense": arm["defense"],
            **shadow_options(arm),
            "trial": arm["chosen"]["trial"],
            "objectives": dict(arm["chosen"]["objectives"]),
        }
        for arm in results["arms"]
        if arm["chosen"] is not None
    ]
    return {"schema_version": SCHEMA_VERSION, "kind": "recipes", "provenance": dict(provenance), "arms": arms}


def at_matched_accuracy(results: Mapping[str, Any], frontier: Mapping[str, Any]) -> dict[str, Any]:
    """The results with other choices: of each arm the trial that the frontier has as `matched`, of least advantage
    among those as accurate as the base's choice, less a point; None where there is no such trial.
    """
    found = {name: best for method in frontier["matched"] for name, best in method["arms"].items()}
    arms = []
    for arm in results["arms"]:
        best = found.get(arm["name"])
        row = None if best is None else next(trial for trial in arm["trials"] if trial["number"] == best["trial"])
        arms.append({**arm, "chosen": row and {"trial": row["number"], **{name: row[name] for name in CHOSEN}}})
    return {**results, "arms": arms}


def shadow_options(arm: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a shadow audit's configuration that an arm decides."""
    chosen, method, defense = arm["chosen"], arm["method"], arm["defense"]
    return {
        "methods": [method],
        "method_options": {method: dict(chosen["method_settings"])},
        "defenses": [] if defense is None else [defense],
        "defense_options": {} if defense is None else {defense: dict(chosen["defense_settings"])},
    }
