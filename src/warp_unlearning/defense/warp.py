"""WARP: teleports between the updates of any method, with a safeguard on what is kept."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import nn

from ..errors import InputError, nearest
from ..methods.protocol import Task, require
from ..models.normalisation import norm_mode
from ..randomness import Streams
from ..symmetry.certificate import Certificate, Certify
from ..symmetry.move import MomentumReset, Move
from ..symmetry.null_space import NullSpace
from ..symmetry.symmetry import Symmetry, require_symmetry
from ..training.update import Update
from .probing import View, draw_view
from .teleporter import Teleporter

Moment = Literal["epoch", "end"]
Momentum = Literal["carry", "reset"]


@dataclass(frozen=True)
class Warp:
    """Teleport along `symmetry` while a method forgets.

    `every`: after each "epoch", once at the "end", after so many updates, or None for never; with `gradient_threshold`
    also after an update where the norm of the mean forget gradient exceeds it. A teleport that raises the mean loss of
    retain examples it has not seen by more than `tolerance` above its value just before, or lowers that of the forget
    examples by more than the share `relearning`, is halved, at most `halvings` times, then taken back; None lifts the
    second bound. `momentum` is carried across as a covector, or "reset". `certify="brief"` writes down what the bounds
    take anyway, and does not look at other examples or at single layers, which takes longer than a tracked teleport.
    """

    name: ClassVar[str] = "warp"

    symmetry: Symmetry = field(default_factory=NullSpace)
    every: Moment | int | None = field(default="epoch", kw_only=True)
    gradient_threshold: float | None = field(default=None, kw_only=True)
    tolerance: float = field(default=0.01, kw_only=True)
    relearning: float | None = field(default=0.02, kw_only=True)
    halvings: int = field(default=4, kw_only=True)
    momentum: Momentum = field(default="carry", kw_only=True)
    certify: Certify = field(default="full", kw_only=True)

    def __post_init__(self) -> None:
        require_symmetry(self.symmetry)
        require(self, positive=("gradient_threshold",), not_negative=("tolerance", "relearning", "halvings"))
        require(self, choices={"momentum": get_args(Momentum), "certify": get_args(Certify)})
        if not isinstance(self.halvings, int):
            raise InputError(f"halvings is {self.halvings!r}; it must be a whole number of at least 0")
        if isinstance(self.every, str):
            if self.every not in get_args(Moment):
                raise InputError(f"every is {self.every!r}; {nearest(self.every, get_args(Moment))}, or give a number")
        elif self.every is None:
            if self.gradient_threshold is None:
                raise InputError("every is None and there is no gradient_threshold: this defence would never act")
        elif isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise InputError(f"every is {self.every!r}; it must be 'epoch', 'end' or a whole number of at least 1")

    def start(self, model: nn.Module, task: Task, *, streams: Streams) -> WarpSession:
        """A session with a symmetry of its own, so that nothing tracked for one network meets another."""
        return WarpSession(self, model, task, streams)


class WarpSession:
    """`Warp` during one unlearning."""

    def __init__(self, settings: Warp, model: nn.Module, task: Task, streams: Streams) -> None:
        self._settings, self._model, self._task, self._streams = settings, model, task, streams
        symmetry = deepcopy(settings.symmetry)
        reference = {name: value.detach() for name, value in task.original.state_dict().items()}
        self._teleporter = Teleporter(
            model,
            symmetry,
            reference,
            tolerance=settings.tolerance,
            relearning=settings.relearning,
            halvings=settings.halvings,
            certify=settings.certify,
            repeated=settings.every != "end",
        )
        self.certificates: list[Certificate] = []

    def between(self, update: Update) -> Move | None:
        """Teleport if this is the moment."""
        if not self._due(update):
            return None
        return self._teleport()

    def finish(self) -> None:
        """Teleport once, if the end is the moment."""
        if self._settings.every == "end":
            self._teleport()

    def _due(self, update: Update) -> bool:
        every = self._settings.every
        if every == "epoch" and update.ends_epoch:
            return True
        if isinstance(every, int) and update.step % every == 0:
            return True
        threshold = self._settings.gradient_threshold
        return threshold is not None and self._forget_gradient(update) > threshold

    def _teleport(self) -> Move | None:
        streams = self._streams.of(len(self.certificates))
        move, certificate = self._teleporter.teleport(self._view(streams), generator=streams.generator("move"))
        self.certificates.append(certificate)
        return MomentumReset(move) if move is not None and self._settings.momentum == "reset" else move

    def _view(self, streams: Streams) -> View:
        task, sizes = self._task, self._teleporter.symmetry.looks_at
        return draw_view(task.retain, task.forget, task.validation, sizes, generator=streams.generator("view"))

    def _forget_gradient(self, update: Update) -> float:
        """‖∇ mean ℓ‖ over a random batch of the forget set, with batch norm in eval mode."""
        generator = self._streams.generator("gradient", update.step)
        order = torch.randperm(len(self._task.forget), generator=generator)
        batch = self._task.forget.take(order[: max(1, self._teleporter.symmetry.looks_at.forget or 256)])
        trained = [p for p in self._model.parameters() if p.requires_grad]
        with norm_mode(self._model, "eval"):
            loss = F.cross_entropy(self._model(batch.x), batch.y)
            gradients = torch.autograd.grad(loss, trained, allow_unused=True)
        return float(torch.stack([g.square().sum() for g in gradients if g is not None]).sum().sqrt())
