"""SRF-ON (SFRon; Huang et al., 2024): masked, reweighted ascent on what is forgotten between steps of repair on what is
kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.examples import Examples, Given, in_order
from ..data.sampling import batch_shape, shuffled
from ..gradients.per_sample import per_sample_gradients
from ..models.modes import norm_mode, predict
from ..training.constraints import Mask
from ..training.repeated import Function
from ..training.schedule import cosine
from ..training.stepper import Number, Stepper
from ..training.update import Update, Updates
from .protocol import NormMode, Task, option, require

FisherKind = Literal["batch", "sample"]


@dataclass(frozen=True, kw_only=True)
class SrfOn:
    """Every iteration t of n takes a retain step; each `forget_every`-th takes before it a forget step, which ascends
    c_t · mean_i w_i ℓ_i with w_i ∝ ℓ_i^−λ (mean 1, not differentiated) and c_t = strength · ½(1 + cos πt/n).

    Both steps are of one SGD with one momentum, its rate falling by the same cosine. The gradient of a forget step is
    zero outside the mask, the weights whose Fisher information is at least `ratio` times larger for the forget set than
    for the retain set, then clipped to norm `max_norm`. As published, weight decay and the momentum of retain steps
    still move the other weights. With `strict_mask` they do not: forget steps have a momentum of their own, and what
    the mask leaves out stays bit-identical.
    """

    name: ClassVar[str] = "srf_on"
    norm_mode: ClassVar[NormMode] = "train"

    iterations: int = option(1500, "retain steps")
    forget_every: int = option(5, "a forget step in each of so many iterations")
    strength: float = option(25.0, "weight of the forget loss at the start")
    reweighting: float = option(0.5, "λ: how much less an example counts whose loss is already high")
    ratio: float = option(1.0, "Fisher ratio, forget to retain, from which on a weight may move in forget steps")
    fisher: FisherKind = option(
        "batch", "squares of batch-mean gradients (as published), or of single examples' (sample)"
    )
    max_norm: float = option(7.0, "norm to which the forget gradient is clipped")
    lr: float = option(0.01, "learning rate at the start, of both kinds of step")
    momentum: float = option(0.9, "momentum of SGD")
    weight_decay: float = option(5e-4, "weight decay of SGD")
    batch_size: int = option(128, "examples a batch")
    strict_mask: bool = option(False, "forget steps leave weights outside of the mask as they are, to the bit")

    def __post_init__(self) -> None:
        require(self, positive=("strength", "ratio", "max_norm", "lr"), shares=("momentum",))
        require(self, counts=("iterations", "forget_every", "batch_size"), not_negative=("reweighting",))
        require(self, not_negative=("weight_decay",), choices={"fisher": get_args(FisherKind)})

    def updates(self, model: nn.Module, task: Task) -> Updates:
        """Iterations of one retain step, some with a forget step before it."""
        mask = self._mask(model, task)
        sgd = Stepper(model, momentum=self.momentum, weight_decay=self.weight_decay)
        forgetting = sgd
        if self.strict_mask:
            forgetting = Stepper(model, momentum=self.momentum, weight_decay=self.weight_decay, constraint=mask)

        def ascend(x: Tensor, y: Tensor, fade: Number) -> dict[str, Tensor]:
            each = F.cross_entropy(predict(model, x), y, reduction="none")
            loss = -self.strength * fade * (self._weights(each) * each).mean()
            forgetting.step(loss, lr=self.lr * fade, through=mask, max_norm=self.max_norm)
            return {"forget": each.mean()}

        def repair(x: Tensor, y: Tensor, fade: Number) -> dict[str, Tensor]:
            loss = F.cross_entropy(predict(model, x), y, reduction="none").mean()
            sgd.step(loss, lr=self.lr * fade)
            return {"retain": loss}

        updates = {"forget": task.repeated(ascend), "retain": task.repeated(repair)}
        batches = {name: self._batches(task, name) for name in updates}
        an_epoch, _ = batch_shape(len(task.retain), self.batch_size)
        step, of = 0, self.iterations + ceil(self.iterations / self.forget_every)
        for t in range(self.iterations):
            fade = cosine(t / self.iterations)
            for phase in ("forget", "retain") if t % self.forget_every == 0 else ("retain",):
                terms = updates[phase](*next(batches[phase]), fade)
                step += 1
                ends = phase == "retain" and ((t + 1) % an_epoch == 0 or t + 1 == self.iterations)
                frozen = mask.frozen if self.strict_mask and phase == "forget" else {}
                moved = yield Update(step, of, t // an_epoch, ends, terms, frozen)
                sgd.carry(moved)
                if self.strict_mask:
                    forgetting.carry(moved)
                elif moved is not None:
                    mask.carry(moved)

    @property
    def masks(self) -> bool:
        """Whether some updates leave entries of weights as they are."""
        return self.strict_mask

    def _weights(self, each: Tensor) -> Tensor:
        weights = 1 / (each.detach().clamp(min=0) ** self.reweighting + 1e-15)
        return weights / weights.mean()

    def _batches(self, task: Task, name: str) -> Iterator[tuple[Given, Given]]:
        examples: Examples = getattr(task, name)
        return shuffled(examples, self.batch_size, generator=task.streams.generator(name), endless=True)

    def _mask(self, model: nn.Module, task: Task) -> Mask:
        exactly = partial(task.repeated, precision="float32")
        forget, retain = (
            fisher_diagonal(model, examples, batch_size=self.batch_size, kind=self.fisher, repeated=exactly)
            for examples in (task.forget, task.retain)
        )
        return Mask({n: (forget[n] + 1e-15) / (retain[n] + 1e-15) >= self.ratio for n in forget})


def fisher_diagonal(
    model: nn.Module,
    examples: Examples,
    *,
    batch_size: int,
    kind: FisherKind,
    repeated: Callable[[Function], Function] = lambda function: function,
) -> dict[str, Tensor]:
    """The mean of squared gradients of the cross-entropy in eval mode, a tensor a trainable parameter.

    Kind "batch" squares the mean gradient of each batch, so its size depends on `batch_size`; kind "sample" squares
    each example's. `repeated` may make of the work on a batch something that is faster when it is done again and again.
    """
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    total = {n: torch.zeros_like(p) for n, p in parameters.items()}
    size = batch_size if kind == "batch" else min(batch_size, 32)

    def add(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        loss = F.cross_entropy(predict(model, x), y)
        gradients = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
        for sum_of, gradient in zip(total.values(), gradients, strict=True):
            sum_of.add_(gradient.square())
        return {"loss": loss}

    added = repeated(add)
    with norm_mode(model, "eval"):
        for index in in_order(len(examples), size):
            x, y = examples.take(index)
            if kind == "batch":
                added(x, y)
                continue
            for name, gradients in per_sample_gradients(model, x, y)[0].items():
                total[name] += gradients.square().sum(0)
    count = len(examples) if kind == "sample" else -(-len(examples) // size)
    return {name: value / count for name, value in total.items()}
