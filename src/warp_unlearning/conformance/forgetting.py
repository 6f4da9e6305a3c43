"""Whether a method forgets: on digits, the gap to the retrained model shrinks and the retained examples are still
known.
"""

from __future__ import annotations

import warnings

import torch
from torch import nn

from ..errors import DivergedError, WarpWarning
from ..methods.protocol import Method
from ..training.scoring import accuracy, logits
from ..unlearning.driver import unlearn
from ..unlearning.judge import output_distance
from .problem import Problem

MOST_LOST = 0.02


def forgets(method: Method, problem: Problem, *, seed: int) -> str | None:
    """How the method fails to approach the retrained model at little cost, or None."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WarpWarning)  # that nothing changed shows in the gap
        try:
            result = unlearn(
                problem.original,
                forget=problem.forget,
                retain=problem.retain,
                validation=problem.validation,
                method=method,
                seed=seed,
            )
        except DivergedError as error:
            return f"seed {seed}: {error}"
    before, after = gap(problem.original, problem), gap(result.model, problem)
    if not after < before:
        return f"seed {seed}: the distance to the retrained model's outputs went from {before:.3f} to {after:.3f}"
    known = [accuracy(model, problem.retain) for model in (problem.original, result.model)]
    if known[1] < known[0] - MOST_LOST:
        return f"seed {seed}: retain accuracy fell from {known[0]:.3f} to {known[1]:.3f}, by more than {MOST_LOST}"
    return None


@torch.no_grad()
def gap(model: nn.Module, problem: Problem) -> float:
    """Mean total variation distance to the retrained model's outputs on the forget set."""
    outputs = [logits(m, problem.forget) for m in (model, problem.retrained)]
    return float(output_distance(outputs[0], outputs[1]).mean())
