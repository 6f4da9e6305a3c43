"""SRF-ON (SFRon; Huang et al., 2024): masked, reweighted ascent on the forget set between repairs on the retain set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.examples import Examples, in_order
from ..gpu.graphs import Function
from ..gradients.per_sample import per_sample_gradients
from ..models.modes import norm_mode, predict
from ..training.constraints import Mask
from ..training.stepper import Number, Stepper
from ..training.update import Update, Updates, cosine
from .base import NormMode, Task, option, require

FisherKind = Literal["batch", "sample"]


@dataclass(frozen=True, kw_only=True)
class SrfOn:
    """Each iteration t of n takes a retain step. Every `forget_every`-th first takes a forget step, which ascends
    c_t · mean_i w_i ℓ_i with w_i ∝ ℓ_i^−λ (mean 1, not differentiated) and c_t = strength · ½(1 + cos πt/n).

    Both steps share one SGD with one momentum, and its learning rate falls by the same cosine. In a forget step the
    gradient is zero outside the mask (weights whose Fisher information is at least `ratio` times larger on the forget
    set than on the retain set), then clipped to norm `max_norm`. As published, weight decay and the momentum of retain
    steps still move the other weights. With `strict_mask` forget steps have a momentum of their own, and weights
    outside the mask stay bit-identical in them.
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
        """Yield after every step: down a retain batch's loss, and before some of these up a forget batch's, masked."""
        mask = self._mask(model, task)
        sgd = Stepper(model, momentum=self.momentum, weight_decay=self.weight_decay)
        forgetting = sgd
        if self.strict_mask:
            forgetting = Stepper(model, momentum=self.momentum, weight_decay=self.weight_decay, constraint=mask)

        def ascend(x: Tensor, y: Tensor, fade: Number) -> dict[str, Tensor]:
            """Take one masked step up the reweighted loss of a forget batch; `fade` falls from 1 to 0 over the run."""
            losses = F.cross_entropy(predict(model, x), y, reduction="none")
            loss = -self.strength * fade * (self._weights(losses) * losses).mean()
            forgetting.step(loss, lr=self.lr * fade, through=mask, max_norm=self.max_norm)
            return {"forget": losses.mean()}

        def repair(x: Tensor, y: Tensor, fade: Number) -> dict[str, Tensor]:
            """Take one step down the loss of a retain batch."""
            loss = F.cross_entropy(predict(model, x), y, reduction="none").mean()
            sgd.step(loss, lr=self.lr * fade)
            return {"retain": loss}

        updates = {"forget": task.update(ascend), "retain": task.update(repair)}
        batches = {"forget": task.batches("forget", self.batch_size), "retain": task.batches("retain", self.batch_size)}
        epoch_length = task.batch_count("retain", self.batch_size)
        step, total = 0, self.iterations + ceil(self.iterations / self.forget_every)
        for t in range(self.iterations):
            fade = cosine(t / self.iterations)
            for phase in ("forget", "retain") if t % self.forget_every == 0 else ("retain",):
                terms = updates[phase](*next(batches[phase]), fade)
                step += 1
                ends = phase == "retain" and ((t + 1) % epoch_length == 0 or t + 1 == self.iterations)
                frozen = mask.frozen if self.strict_mask and phase == "forget" else {}
                move = yield Update(step, total, t // epoch_length, ends, terms, frozen)
                sgd.carry(move)
                if self.strict_mask:
                    forgetting.carry(move)
                elif move is not None:
                    mask.carry(move)

    @property
    def masks(self) -> bool:
        """Whether some updates keep masked weights bit-identical."""
        return self.strict_mask

    def _weights(self, losses: Tensor) -> Tensor:
        """w_i ∝ ℓ_i^−λ with mean 1: examples whose loss is already high count less."""
        weights = 1 / (losses.detach().clamp(min=0) ** self.reweighting + 1e-15)
        return weights / weights.mean()

    def _mask(self, model: nn.Module, task: Task) -> Mask:
        """The weights that forget steps may move: those with more Fisher information on the forget set, by `ratio`."""
        in_float32 = partial(task.update, precision="float32")
        forget, retain = (
            fisher_diagonal(model, examples, batch_size=self.batch_size, kind=self.fisher, update=in_float32)
            for examples in (task.forget, task.retain)
        )
        return Mask({n: (forget[n] + 1e-15) / (retain[n] + 1e-15) >= self.ratio for n in forget})


def fisher_diagonal(
    model: nn.Module,
    examples: Examples,
    *,
    batch_size: int,
    kind: FisherKind,
    update: Callable[[Function], Function] = lambda function: function,
) -> dict[str, Tensor]:
    """The mean of squared gradients of the cross-entropy in eval mode, one tensor for each trainable parameter.

    Kind "batch" squares the mean gradient of each batch, so its size depends on `batch_size`; kind "sample" squares
    each example's. `update` may capture the work on a batch.
    """
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    total = {n: torch.zeros_like(p) for n, p in parameters.items()}
    size = batch_size if kind == "batch" else min(batch_size, 32)

    def add(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Add the squared gradient of a batch's mean loss to `total`, in place so that it may be captured."""
        loss = F.cross_entropy(predict(model, x), y)
        gradients = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
        for squares, gradient in zip(total.values(), gradients, strict=True):
            squares.add_(gradient.square())
        return {"loss": loss}

    add_batch = update(add)
    with norm_mode(model, "eval"):
        for index in in_order(len(examples), size):
            x, y = examples.take(index)
            if kind == "batch":
                add_batch(x, y)
                continue
            for name, gradients in per_sample_gradients(model, x, y)[0].items():
                total[name] += gradients.square().sum(0)
    count = len(examples) if kind == "sample" else -(-len(examples) // size)
    return {name: value / count for name, value in total.items()}
