"""Projected gradient unlearning (Hoang et al., 2024): forget only along directions that retained inputs do not use."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import ClassVar, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.examples import Examples
from ..errors import InputError, WarpWarning
from ..linalg.subspace import Rule, SecondMoment
from ..models.modes import norm_mode, predict
from ..symmetry.layer_inputs import InputBasis, LinearWeight, movable_weights, observe
from ..symmetry.moves import Move
from ..training.constraints import InputComplement
from ..training.scoring import accuracy
from ..training.stepper import Number, Stepper
from ..training.update import Update, Updates, geometric
from .base import NormMode, Task, option, require


@dataclass(frozen=True, kw_only=True)
class ProjectedGradient:
    """Descends mean −log(1 − (p_y − offset)) − entropy_weight · H(p), a bounded loss, on forget batches. Each step is
    projected, layer by layer, onto the complement of the span of the retained inputs. Only weights of linear maps move:
    biases, batch norm and running statistics stay; a warning names other weights that stay.

    With a validation set it stops after the epoch in which forget accuracy falls to validation accuracy or below, and
    keeps the better of the last two epochs, the one with the smaller gap.
    """

    name: ClassVar[str] = "pgu"
    norm_mode: ClassVar[NormMode] = "eval"
    masks: ClassVar[bool] = True

    energy: float = option(0.95, "share of the retained inputs' spectrum to protect, by `rule`")
    rule: Rule = option(
        "singular_values", "what the share is of: singular_values (as published) or energy (their squares)"
    )
    samples: int = option(2048, "retain examples from which the input spans are computed")
    offset: float = option(0.05, "keeps the loss finite where a forget example has probability 1")
    entropy_weight: float = option(0.2, "weight of the entropy, which is maximised")
    lr: float = option(0.05, "learning rate at the start")
    last_lr: float = option(0.01, "learning rate at the end, reached by equal ratios")
    epochs: int = option(100, "passes over the forget set, at most")
    batch_size: int = option(128, "forget examples a batch")
    momentum: float = option(0.0, "momentum of SGD")
    weight_decay: float = option(0.0, "weight decay of SGD")
    stop: bool = option(True, "stop by the validation set, where there is one")

    def __post_init__(self) -> None:
        require(self, positive=("energy", "lr", "last_lr", "offset"), shares=("energy", "momentum", "offset"))
        require(self, counts=("samples", "epochs", "batch_size"), not_negative=("weight_decay", "entropy_weight"))
        require(self, choices={"rule": get_args(Rule)})

    def updates(self, model: nn.Module, task: Task) -> Updates:
        """Yield after every projected step on a forget batch, until the last epoch or the early stop."""
        projection = retained_complement(model, task, samples=self.samples, energy=self.energy, rule=self.rule)
        stepper = Stepper(
            model, only=projection, momentum=self.momentum, weight_decay=self.weight_decay, constraint=projection
        )
        frozen = {n: torch.ones_like(p, dtype=torch.bool) for n, p in model.named_parameters() if n not in projection}
        stop = _EarlyStop(model, task.forget, task.validation) if self.stop and task.validation is not None else None

        def descend(x: Tensor, y: Tensor, lr: Number) -> dict[str, Tensor]:
            """Take one projected step down the loss of a forget batch."""
            loss = self._loss(predict(model, x), y)
            stepper.step(loss, lr=lr)
            return {"forget": loss}

        update = task.update(descend)
        count = task.batch_count("forget", self.batch_size)
        total = self.epochs * count
        for e in range(self.epochs):
            lr = geometric(self.lr, self.last_lr, e / max(self.epochs - 1, 1))
            for i, batch in enumerate(task.batches("forget", self.batch_size, epoch=e), e * count + 1):
                terms = update(*batch, lr)
                move = yield Update(i, total, e, i == (e + 1) * count, terms, frozen)
                stepper.carry(move)
                if move is not None and stop is not None:
                    stop.carry(move)
            if stop is not None and stop.reached(model):
                return

    def _loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Least where the label has no probability: mean −log(1 − (p_y − offset)) − entropy_weight · H(p)."""
        log_p = F.log_softmax(output, dim=1)
        p = log_p.exp()
        p_label = p.gather(1, y.unsqueeze(1)).squeeze(1)
        entropy = -(p * log_p).sum(1)
        return (-torch.log1p(self.offset - p_label) - self.entropy_weight * entropy).mean()


def retained_complement(model: nn.Module, task: Task, *, samples: int, energy: float, rule: Rule) -> InputComplement:
    """The projection that keeps the response of every layer to `samples` retain examples.

    It covers the weights of Linear, convolution and MultiheadAttention layers; a warning names the others.
    """
    order = torch.randperm(len(task.retain), generator=task.streams.generator("samples"))[:samples]
    batches = [task.retain.take(index).x for index in torch.split(order, 256)]
    moments: dict[str, SecondMoment] = {}

    def record(weight: LinearWeight, columns: Tensor) -> None:
        """Add some inputs of a layer to its second moment."""
        moments.setdefault(weight.name, SecondMoment(torch.float64)).add(columns)

    with norm_mode(model, "eval"):
        # Biases stay, so that no constant 1 is among the inputs.
        weights = {weight.name: replace(weight, bias=None) for weight in movable_weights(model, batches[0])[0]}
        observe(model, batches, weights.values(), record)
    if not moments:
        raise InputError("pgu found no Linear or Conv layer to project; it cannot change this model")
    unprojected = [n for n, p in model.named_parameters() if p.requires_grad and p.dim() > 1 and n not in moments]
    if unprojected:
        warnings.warn(
            f"pgu leaves {', '.join(unprojected)} as they are: only weights that nothing but Linear, Conv or "
            "MultiheadAttention layers read can be kept from changing the answers on retained examples",
            WarpWarning,
            stacklevel=2,
        )
    # A moment, which may be large, is freed before the next one is decomposed.
    return InputComplement(
        {name: InputBasis.leading(weights[name], moments.pop(name), energy, rule=rule) for name in list(moments)}
    )


class _EarlyStop:
    """Compares forget with validation accuracy after each epoch, and keeps the weights of the epoch before."""

    def __init__(self, model: nn.Module, forget: Examples, validation: Examples) -> None:
        self._forget, self._validation = forget, validation
        self._remember(model, self._gap(model))

    def _gap(self, model: nn.Module) -> float:
        """Forget accuracy less validation accuracy: above 0 as long as the model remembers."""
        return accuracy(model, self._forget) - accuracy(model, self._validation)

    def _remember(self, model: nn.Module, gap: float) -> None:
        self._last_gap, self._last_weights = gap, {n: t.clone() for n, t in model.state_dict().items()}

    def reached(self, model: nn.Module) -> bool:
        """Whether to stop now; if so the model has the weights of the better of the last two epochs."""
        gap = self._gap(model)
        if gap > 0:
            self._remember(model, gap)
        elif abs(self._last_gap) < abs(gap):
            model.load_state_dict(self._last_weights)
        return gap <= 0

    def carry(self, move: Move) -> None:
        """Move the remembered weights along."""
        self._last_weights = {n: move.point(n, t) for n, t in self._last_weights.items()}
