"""Attackers who undo a defence: steps before any attack that takes an original and an unlearned model."""

from .protocol import Held, NotApplicable, PreStep, Undo, Weights
from .registry import default_steps, make_pre_step, pre_steps
from .states import difference, undone_model

__all__ = [
    "Held",
    "NotApplicable",
    "PreStep",
    "Undo",
    "Weights",
    "default_steps",
    "difference",
    "make_pre_step",
    "pre_steps",
    "undone_model",
]
