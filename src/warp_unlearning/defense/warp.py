"""WARP: when to teleport between the updates of any method; one teleport, and when it is undone, is `teleporter`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import InputError, WarpWarning, nearest
from ..methods.base import Task, require
from ..models.modes import norm_mode
from ..randomness import Streams
from ..symmetry.base import Symmetry, option, require_symmetry
from ..symmetry.moves import MomentumReset, Move
from ..symmetry.null_space import NullSpace
from ..training.update import Update
from .certificate import TAKEN_BACK, Certificate, pinned_channels
from .teleporter import EXAMPLES, Teleporter

Moment = Literal["epoch", "end"]
Momentum = Literal["carry", "reset"]


@dataclass(frozen=True)
class Warp:
    """Teleport along `symmetry` while a method forgets.

    `every`: after each "epoch", once at the "end", after every so many updates, or None for never. With
    `gradient_threshold` also after an update at which the norm of the mean forget gradient exceeds it. A teleport is
    taken back if it raises the mean loss of unseen retained examples by more than `tolerance`, or lowers that of the
    forget examples by more than the share `relearning`, if given. `momentum` is carried as a covector, or "reset".
    """

    symmetry: Symmetry = field(default_factory=NullSpace)
    _: KW_ONLY
    every: Moment | int | None = option(
        "epoch", "when to teleport: after each epoch, once at the end, after so many updates, or null"
    )
    gradient_threshold: float | None = option(
        None, "teleport also after an update where the mean forget gradient is longer"
    )
    tolerance: float = option(
        0.01, "rise of the loss of unseen retained examples beyond which a teleport is taken back"
    )
    relearning: float | None = option(
        None, "fall of the loss of examples to forget, as a share, beyond which one is taken back; null for none"
    )
    momentum: Momentum = option("carry", "carry the optimizer's momentum across a teleport, or reset it")
    _name: str = field(default="warp", init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_symmetry(self.symmetry)
        require(self, positive=("gradient_threshold",), not_negative=("tolerance", "relearning"))
        require(self, choices={"momentum": get_args(Momentum)})
        every, moments = self.every, get_args(Moment)
        if every is None and self.gradient_threshold is None:
            raise InputError("every is None and there is no gradient_threshold: this defence would never act")
        if isinstance(every, str) and every not in moments:
            raise InputError(f"every is {every!r}; {nearest(every, moments)}, or give a number")
        if every is not None and every not in moments:
            require(self, counts=("every",))

    @property
    def name(self) -> str:
        """That of the recipe in the registry, or "warp"."""
        return self._name

    def start(self, model: nn.Module, task: Task, *, streams: Streams) -> WarpSession:
        return WarpSession(self, model, task, streams)


class WarpSession:
    """`Warp` during one unlearning: decides after every update whether to teleport."""

    def __init__(self, settings: Warp, model: nn.Module, task: Task, streams: Streams) -> None:
        self._settings, self._model, self._task, self._streams = settings, model, task, streams
        bounds = {"tolerance": settings.tolerance, "relearning": settings.relearning}
        self._teleporter = Teleporter.during(task, model, settings.symmetry, **bounds)
        pinned_channels(settings.symmetry, model)  # Refuses, before the first update, a network that it cannot move.

    @property
    def certificates(self) -> list[Certificate]:
        return self._teleporter.certificates

    def between(self, update: Update) -> Move | None:
        """Teleport if `every` or `gradient_threshold` says so. Returns the move, None if none was made or kept."""
        return self._teleport() if self._due(update) else None

    def finish(self) -> None:
        """Teleport if `every` is "end"; warn if no teleport of the whole run was kept."""
        if self._settings.every == "end":
            self._teleport()
        if any(certificate.scale for certificate in self.certificates):
            return
        reason = "it was never time for a teleport. Give another `every` or `gradient_threshold`"
        if self.certificates:
            last_note = next(note for note in self.certificates[-1].notes if note.startswith(TAKEN_BACK))
            reason = (
                f"all {len(self.certificates)} teleports were {TAKEN_BACK}, the last since"
                f"{last_note.removeprefix(TAKEN_BACK + ':')}. Shorten the steps (step_size or eta), or widen that bound"
            )
        warnings.warn(f"the defence moved nothing: {reason}", WarpWarning, stacklevel=2)

    def brought_back(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The state as it is: there is no basis to come back from."""
        return state

    def _due(self, update: Update) -> bool:
        """Whether to teleport after this update, by the clock `every` or by the forget gradient's length."""
        every, threshold = self._settings.every, self._settings.gradient_threshold
        if every == "epoch" and update.ends_epoch:
            return True
        if isinstance(every, int) and update.step % every == 0:
            return True
        return threshold is not None and self._forget_gradient_norm(update) > threshold

    def _teleport(self) -> Move | None:
        """Teleport now; returns what the method's optimizer must follow, or None if it was taken back."""
        move = self._teleporter.teleport_on(self._task, self._streams)
        return MomentumReset(move) if move is not None and self._settings.momentum == "reset" else move

    def _forget_gradient_norm(self, update: Update) -> float:
        """‖∇ mean ℓ‖ over a random batch of the forget set, which triggers a teleport above `gradient_threshold`."""
        generator = self._streams.generator("gradient", update.step)
        order = torch.randperm(len(self._task.forget), generator=generator)
        batch = self._task.forget.take(order[: max(1, self._teleporter.symmetry.looks_at.forget or EXAMPLES)])
        trained = [p for p in self._model.parameters() if p.requires_grad]
        with norm_mode(self._model, "eval"):
            loss = F.cross_entropy(self._model(batch.x), batch.y)
            gradients = torch.autograd.grad(loss, trained, allow_unused=True)
        return float(torch.stack([g.square().sum() for g in gradients if g is not None]).sum().sqrt())
