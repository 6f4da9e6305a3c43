"""How long the gradient-difference test takes here, beside a plain loop over single examples in the same run."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from ..attacks.membership.gradient_difference import gradient_difference
from ..data.examples import TensorExamples
from .training_speed import now

_LOOPED = 20


@dataclass(frozen=True)
class GradientTestSpeed:
    """Seconds of a test, and of the gradients of as many examples under both models, one by one in a plain loop."""

    examples: int
    seconds: float
    loop_seconds: float

    @property
    def faster(self) -> float:
        """How many times as long the loop takes, which only computes gradients."""
        return self.loop_seconds / self.seconds


def gradient_test_speed(
    model: nn.Module, examples: TensorExamples, *, count: int, generator: torch.Generator
) -> GradientTestSpeed:
    """Of `count` background examples and as many candidates, on a model and a copy with a little noise."""
    other = deepcopy(model).eval()
    with torch.no_grad():
        for p in other.parameters():
            p.add_(0.01 * p.abs().mean() * torch.randn(p.shape, generator=generator).to(p.device))
    device = examples.x.device
    parts = [examples.select(torch.arange(i * count, (i + 1) * count)) for i in range(2)]
    test = partial(gradient_difference, model.eval(), other, candidates=parts[0], background=parts[1])
    # The first call chooses kernels and finds memory.
    test()
    began = now(device)
    test()
    seconds = now(device) - began
    return GradientTestSpeed(2 * count, seconds, _gradient_seconds(model, examples) * 4 * count)


def _gradient_seconds(model: nn.Module, examples: TensorExamples) -> float:
    """Seconds of the gradient of one example, by itself."""
    parameters = list(model.parameters())
    device = examples.x.device
    began = 0.0
    for i in range(2 * _LOOPED):
        if i == _LOOPED:
            began = now(device)
        x, y = examples.take(torch.tensor([i % len(examples)]))
        torch.autograd.grad(F.cross_entropy(model(x), y), parameters)
    return (now(device) - began) / _LOOPED
