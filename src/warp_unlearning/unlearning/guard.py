"""Stops an unlearning when a loss or a weight is no longer finite, or when accuracy collapses.

Both watchers keep the weights of their last good check, which the error they raise hands on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite

import numpy as np
import torch
from torch import Tensor, nn

from ..data.examples import Examples, TensorExamples
from ..data.sampling import draw_per_class
from ..errors import CollapsedError, DivergedError
from ..methods.base import Task
from ..stats.exchange import sign_p
from ..training.scoring import logits
from ..training.update import Update

ADVICE = "Lower the learning rate or the weight of the forget loss, or bound it (ngp: saturate=true)"
# An accuracy this much below the start's, beyond chance, is a collapse.
COLLAPSE, BEYOND_CHANCE = 0.20, 0.01
# Rows looked at: a share of the retain set, which takes under 2 % of an epoch's passes, within these bounds. With
# fewer unseen rows retained ones serve; of fewer than FEW_RETAINED of those 20 points say little, and none are watched.
FEWEST, MOST, SHARE, FEW_RETAINED, LOOKS = 50, 500, 0.03, 200, 8


class Guard:
    """Reads losses and checks weights every `interval` updates, so that the host waits for a GPU that often only."""

    def __init__(self, model: nn.Module, *, interval: int = 10, advice: str = ADVICE) -> None:
        self._model, self._interval, self._advice = model, interval, advice
        self._good = {name: t.clone() for name, t in model.state_dict().items()}
        self._floating = [name for name, t in self._good.items() if t.is_floating_point()]
        self._waiting: list[Update] = []
        self.history: list[dict[str, float]] = []

    def watch(self, update: Update) -> None:
        """Note an update; check at the end of an interval."""
        self._waiting.append(update)
        if len(self._waiting) >= self._interval:
            self.flush()

    @torch.no_grad()
    def flush(self) -> None:
        """Read all losses noted since the last check, in one transfer, and check them and the weights."""
        losses = [loss for update in self._waiting for loss in update.losses.values()]
        # Read anew each time: a change of memory layout gives a parameter another storage.
        state = self._model.state_dict()
        floating = [state[name] for name in self._floating]
        total = torch.stack(torch._foreach_norm(floating)).sum()  # finite if and only if every norm is
        joined = torch.cat([torch.stack(part).double() for part in (losses, [total]) if part])
        *values, size = joined.tolist()
        bad = next((f"a loss became {v}" for v in values if not isfinite(v)), "")
        if bad or not isfinite(size):
            step = self._waiting[-1].step if self._waiting else 0
            last = int(self.history[-1]["update"]) if self.history else 0
            raise DivergedError(
                f"{bad or 'a weight is no longer finite'} by update {step}; the weights after update {last} are the "
                f"last finite ones and are kept. {self._advice}",
                state=dict(self._good),
                update=step,
            )
        each = iter(values)
        for update in self._waiting:
            row = {"update": update.step, "epoch": update.epoch}
            self.history.append(row | {name: next(each) for name in update.losses})
        self._waiting.clear()
        # One kernel for the floating-point tensors; a list of mixed types would be copied one by one.
        torch._foreach_copy_([self._good[name] for name in self._floating], floating)
        for name in self._good.keys() - set(self._floating):
            self._good[name].copy_(state[name])


class Collapse:
    """Stops a run when fewer of `examples` get right answers than before it, by more than 20 points and beyond chance.

    Checks at the end of each epoch, of many epochs at every eighth of the run. A low that passes is no collapse (salun
    has some in its first epochs): a run is stopped in its second half, where an epoch is no better than a low one
    before it, and at its end. A run that restarts from other weights, as retraining does, is not watched.
    """

    def __init__(self, model: nn.Module, examples: TensorExamples) -> None:
        self._model, self._examples = model, examples
        self._good = {name: t.clone() for name, t in model.state_dict().items()}
        self._before = self._right()
        self._last, self._looked, self._low, self._watching = 0, 0, 0.0, True

    def watch(self, update: Update) -> None:
        """Check the accuracy if an epoch ends with this update."""
        self._watching &= not update.restarts
        end = update.step == update.total
        due = end or LOOKS * (update.step - self._looked) >= update.total
        if not (self._watching and update.ends_epoch and due):
            return
        self._looked, right = update.step, self._right()
        up, down = int((right & ~self._before).sum()), int((self._before & ~right).sum())
        low = (down - up) / len(right)
        if low <= COLLAPSE or sign_p(down, up) >= BEYOND_CHANCE:
            self._last, self._low = update.step, 0.0
            for name, tensor in self._model.state_dict().items():
                self._good[name].copy_(tensor)
        elif end or (2 * update.step > update.total and 0 < self._low <= low):
            before, after = (float(each.double().mean()) for each in (self._before, right))
            raise CollapsedError(
                f"accuracy fell from {before:.3f} to {after:.3f} of {len(right)} rows that the model should still know "
                f"by update {update.step} of {update.total}: the model collapsed. The weights after update {self._last}"
                " are kept; lower the learning rate, the epochs or the weight of the forget loss",
                state=self._good,
                update=update.step,
            )
        else:
            self._low = low

    def _right(self) -> Tensor:
        with generators_kept(self._examples.x.device):
            return (logits(self._model, self._examples).argmax(1) == self._examples.y).cpu()


def rows_to_watch(task: Task, unseen: Examples | None) -> TensorExamples | None:
    """At most 500 rows of the classes that are kept: `unseen` ones, or retained ones where those are too few."""
    count = min(MOST, max(FEWEST, round(SHARE * len(task.retain))))
    draw = task.streams.generator("collapse")
    for source, fewest in ((unseen, FEWEST), (task.retain, FEW_RETAINED)):
        if source is None:
            continue
        here = torch.isin(source.y, task.retain.y).nonzero().flatten().cpu()
        if len(here) >= fewest:
            chosen = draw_per_class(source.y.cpu()[here].numpy(), count=min(count, len(here)), generator=draw)
            with generators_kept(task.retain.y.device):
                return TensorExamples(*source.take(here[torch.from_numpy(chosen)]))
    return None


@contextmanager
def generators_kept(device: torch.device, *, start: int | None = None) -> Iterator[None]:
    """Restore torch's and numpy's global generators after the block, which starts from the seed `start` if given."""
    numpy_state = np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            if start is not None:
                torch.default_generator.manual_seed(start)
                np.random.seed(start)  # noqa: NPY002
            yield
    finally:
        np.random.set_state(numpy_state)  # noqa: NPY002
