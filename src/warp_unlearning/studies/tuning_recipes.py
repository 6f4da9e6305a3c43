"""The chosen settings as recipes that other commands load, with where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


def shadow_options(arm: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a shadow audit's configuration that an arm decides."""
    chosen, method, defense = arm["chosen"], arm["method"], arm["defense"]
    return {
        "methods": [method],
        "method_options": {method: dict(chosen["method_settings"])},
        "defenses": [] if defense is None else [defense],
        "defense_options": {} if defense is None else {defense: dict(chosen["defense_settings"])},
    }
