"""The defence of a configuration, and what it did in numbers that a summary can hold."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..config.schema import DefenseConfig
from ..data.examples import Examples, in_order
from ..data.files import to_json
from ..defense.base import Defense
from ..defense.registry import make_defense
from ..errors import InputError
from ..gradients.energy import gradient_energy
from ..models.normalisation import norm_mode
from ..unlearning.driver import Unlearned


def choose_defense(config: DefenseConfig) -> Defense | None:
    """The defence of the configuration, if it names one."""
    if config.name is not None:
        return make_defense(config.name, **config.options)
    if config.options or config.seed is not None:
        given = "options" if config.options else "seed"
        raise InputError(f"defense.{given} is set, but no defence; name one with --defense (defense.name)")
    return None


def defense_summary(config: DefenseConfig, original: nn.Module, result: Unlearned, forget: Examples) -> dict[str, Any]:
    """How often the weights were moved, what that did to retained examples, and the forget gradient energies of the
    original and of the result.
    """
    scales = [certificate.scale for certificate in result.teleports]
    summary: dict[str, Any] = to_json(
        {
            "name": config.name,
            "experiment_only": config.seed is not None,
            "teleports": len(scales),
            "taken_back": scales.count(0.0),
            "largest_relative_move": max((c.relative_move for c in result.teleports), default=0.0),
            "largest_retain_drift": max((c.retain.loss_change for c in result.teleports), default=None),
            "forget_energy": {
                "original": forget_energy(original, forget),
                "unlearned": forget_energy(result.model, forget),
            },
        }
    )
    return summary


def plain_teleports(result: Unlearned) -> list[dict[str, Any]]:
    """The certificates as plain data."""
    return [to_json(certificate.as_json()) for certificate in result.teleports]


@torch.no_grad()
def forget_energy(model: nn.Module, forget: Examples, *, batch_size: int = 256) -> float | None:
    """The mean squared norm of the loss gradient over the examples, or None where the network does not allow it."""
    total = 0.0
    try:
        with norm_mode(model, "eval"):
            for index in in_order(len(forget), batch_size):
                total += float(gradient_energy(model, *forget.take(index)).double().sum())
    except InputError:
        return None
    return total / len(forget)
