"""Watches an unlearning: turns losses into history rows, and stops it when a loss or a weight is no longer finite."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

import torch
from torch import Tensor, nn

from ..errors import DivergedError
from ..training.update import Update
from ..waiting import await_device


class Guard:
    """Reads losses and checks weights every `interval` updates, so that a GPU is waited for that often only.

    Keeps a copy of the weights as they were when last found finite.
    """

    def __init__(self, model: nn.Module, *, interval: int = 10) -> None:
        self._interval = interval
        self._waiting: list[Update] = []
        self._model = model
        self._kept = {n: t.clone() for n, t in model.state_dict().items()}
        self._exact = [n for n, t in self._kept.items() if not t.is_floating_point()]
        self._floating = [n for n in self._kept if n not in self._exact]
        self.history: list[dict[str, float]] = []

    def watch(self, update: Update) -> None:
        """Take note of an update."""
        self._waiting.append(update)
        if len(self._waiting) >= self._interval:
            self.flush()

    @torch.no_grad()
    def flush(self) -> None:
        """Read all losses noted since the last time, in one transfer, and check them and the weights."""
        losses = [loss for update in self._waiting for loss in update.losses.values()]
        # Read anew each time: a change of memory layout gives a parameter another storage.
        state = self._model.state_dict()
        norms = torch._foreach_norm([state[n] for n in self._floating])
        sums = torch.stack([torch.stack(norms).sum().double()])  # finite if and only if every norm is
        joined = torch.cat([torch.stack(losses).double(), sums] if losses else [sums])
        await_device(joined.device)
        numbers = joined.tolist()
        self._check(numbers[:-1], numbers[-1])
        values = iter(numbers)
        for update in self._waiting:
            row = {"update": update.step, "epoch": update.epoch}
            self.history.append(row | {name: next(values) for name in update.losses})
        self._waiting.clear()
        self._keep(state)

    def _keep(self, state: Mapping[str, Tensor]) -> None:
        # One kernel for the floating-point tensors; a list of mixed types would be copied one by one.
        torch._foreach_copy_([self._kept[n] for n in self._floating], [state[n] for n in self._floating])
        for name in self._exact:
            self._kept[name].copy_(state[name])

    def _check(self, losses: list[float], total: float) -> None:
        step = self._waiting[-1].step if self._waiting else 0
        if not all(isfinite(v) for v in losses):
            value = next(v for v in losses if not isfinite(v))
            raise self._diverged(f"a loss became {value}", step)
        if not isfinite(total):
            raise self._diverged("a weight is no longer finite", step)

    def _diverged(self, what: str, step: int) -> DivergedError:
        last = int(self.history[-1]["update"]) if self.history else 0
        return DivergedError(
            f"{what} by update {step}; the weights after update {last} are the last finite ones and are kept. "
            "Lower the learning rate or the weight of the forget loss, or bound it (ngp: saturate=true)",
            state=dict(self._kept),
            update=step,
        )


def training_modes(model: nn.Module) -> list[bool]:
    """Which modules are in train mode, in the order of `modules()`."""
    return [m.training for m in model.modules()]


def restore_modes(model: nn.Module, modes: list[bool]) -> None:
    """Put modules back into the modes that `training_modes` found."""
    for module, training in zip(model.modules(), modes, strict=True):
        module.training = training
