"""The unlearning that reconstructions are judged on: one example forgotten by one step of NegGrad+."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..methods.base import NormMode, Task
from ..training.update import Update, Updates


@dataclass(frozen=True, eq=False)
class OneStep:
    """θ ← θ + rate · (ascent · g_forget − (1 − ascent) · g_retain), once, on a retain batch of its own, inputs and
    labels, with the whole retain set left to the defence.
    """

    retain: tuple[Tensor, Tensor]
    rate: float
    ascent: float
    name: ClassVar[str] = "one step of ngp"
    norm_mode: NormMode = "eval"

    def updates(self, model: nn.Module, task: Task) -> Updates:
        """The step."""
        forget = task.forget.take(torch.tensor([0], device=self.retain[0].device))
        terms = {
            "forget": F.cross_entropy(model(forget.x), forget.y),
            "retain": F.cross_entropy(model(self.retain[0]), self.retain[1]),
        }
        loss = self.ascent * terms["forget"] - (1 - self.ascent) * terms["retain"]
        parameters = list(model.parameters())
        with torch.no_grad():
            for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                p.add_(g, alpha=self.rate)
        yield Update(1, 1, 0, True, {name: value.detach() for name, value in terms.items()})
