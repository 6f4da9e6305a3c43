"""The update that an image would have caused: its gradient at the original, or the steps of a schedule unrolled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from ...gpu.precision import math_attention
from ...gradients.per_sample import example_gradients
from ...gradients.tracing import TwiceDifferentiable, parameters_replaced
from .threat import Schedule

Weights = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Predictor:
    """Predicts the updates of the parameters `names` of a model in eval mode.

    Without a schedule an update is the gradient of the mean loss, which is its direction after one step of ascent. With
    one, the steps are taken one after another, each at the weights that the last led to, with `retained` examples in
    place of those the unlearning kept.
    """

    model: nn.Module
    names: Sequence[str]
    schedule: Schedule | None = None
    retained: tuple[Tensor, Tensor] | None = None

    def __call__(self, inputs: Tensor, labels: Tensor) -> Weights:
        """Updates (b, *parameter) by name, of inputs (b, count, *shape) with labels (b, count), differentiable in the
        inputs.
        """
        if self.schedule is None or (self.schedule.steps == 1 and not self.schedule.descent):
            return self._gradients(inputs, labels)
        places = dict(self.model.named_parameters())
        start = {name: places[name].detach() for name in self.names}
        # Fused attention cannot be differentiated twice.
        with TwiceDifferentiable(layer_norm=True), math_attention():
            found: Weights = vmap(self._unrolled, in_dims=(None, 0, 0))(start, inputs, labels)
        return found

    def _gradients(self, inputs: Tensor, labels: Tensor) -> Weights:
        b, count = labels.shape
        each = example_gradients(self.model, inputs.flatten(0, 1), labels.flatten(), names=self.names)
        if count == 1:
            return each
        return {name: g.reshape(b, count, *g.shape[1:]).mean(1) for name, g in each.items()}

    def _loss(self, weights: Weights, x: Tensor, y: Tensor) -> Tensor:
        places = dict(self.model.named_parameters())
        with parameters_replaced(self.model.modules(), {id(places[name]): value for name, value in weights.items()}):
            return F.cross_entropy(self.model(x), y)

    def _unrolled(self, start: Weights, x: Tensor, y: Tensor) -> Weights:
        schedule, now = self.schedule, start
        assert schedule is not None
        for rate in schedule.rates:
            forget = grad(self._loss)(now, x, y)
            step = {name: schedule.ascent * g for name, g in forget.items()}
            if schedule.descent and self.retained is not None:
                kept = grad(self._loss)(now, *self.retained)
                step = {name: value - schedule.descent * kept[name] for name, value in step.items()}
            now = {name: value + rate * step[name] for name, value in now.items()}
        return {name: now[name] - start[name] for name in now}


def size_of(model: nn.Module, names: Sequence[str]) -> int:
    """How many numbers an update has."""
    places = dict(model.named_parameters())
    return sum(places[name].numel() for name in names)


def in_groups(updates: Weights, groups: int) -> Weights:
    """Updates (n·r, *parameter) as (n, r, *parameter)."""
    return {name: u.reshape(groups, -1, *u.shape[1:]) for name, u in updates.items()}
