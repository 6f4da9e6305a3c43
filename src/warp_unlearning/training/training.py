"""Training of one model, as a generator of updates that can be stopped and taken up again to the same weights."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.augment import random_crop_flip
from ..data.examples import Examples
from ..data.sampling import batch_shape, epoch
from ..errors import DivergedError, WeightsError
from ..models.normalisation import enter_mode, predict
from ..randomness import LayerDraws, Streams
from .precision import autocast, lay_out, lay_out_batch
from .recipe import Recipe
from .schedule import cosine
from .stepper import Stepper
from .update import Update, Updates


class Training:
    """Trains `model` in place. Every epoch draws from streams of its own number, so a resumed run needs no generator
    state.

    `fill` is the value of a black pixel after normalisation, a number per channel, with which crops are padded.
    """

    def __init__(
        self,
        model: nn.Module,
        examples: Examples,
        *,
        recipe: Recipe,
        streams: Streams,
        fill: Sequence[float] = (0.0,),
    ) -> None:
        self.model = lay_out(model)
        self.examples, self.recipe, self.streams, self.fill = examples, recipe, streams, fill
        self.epoch = 0
        self._stepper = Stepper(model, momentum=recipe.momentum, weight_decay=recipe.weight_decay)

    def updates(self) -> Updates:
        """Train from the current epoch to the last, one update a step."""
        batches, _ = batch_shape(len(self.examples), self.recipe.batch_size)
        of = self.recipe.epochs * batches
        enter_mode(self.model, "train")
        while self.epoch < self.recipe.epochs:
            lr = self.recipe.lr * cosine(self.epoch / self.recipe.epochs)
            order = self.streams.generator("batches", self.epoch)
            noise = self.streams.generator("augmentation", self.epoch)
            draws = LayerDraws(self.streams.number("layers", self.epoch), device=self.examples.y.device)
            first = self.epoch * batches
            for i, index in enumerate(epoch(len(self.examples), self.recipe.batch_size, generator=order), 1):
                with draws:
                    loss = self._step(index, noise, lr)
                if i == batches:
                    self.epoch += 1
                moved = yield Update(first + i, of, (first + i - 1) // batches, i == batches, {"train": loss})
                self._stepper.carry(moved)

    def _step(self, index: Tensor, noise: torch.Generator, lr: float) -> Tensor:
        x, y = self.examples.take(index)
        if self.recipe.crop_padding or self.recipe.flip:
            x = random_crop_flip(
                x, padding=self.recipe.crop_padding, flip=self.recipe.flip, fill=self.fill, generator=noise
            )
        with autocast(x.device, self.recipe.precision):
            logits = predict(self.model, lay_out_batch(x))
        loss = F.cross_entropy(logits.float() if logits.dtype == torch.bfloat16 else logits, y)
        self._stepper.step(loss, lr=lr)
        return loss.detach()

    def state(self) -> dict[str, Tensor]:
        """Weights, optimizer state and epoch: everything that decides the rest of the run. Only between epochs."""
        weights = {f"weights/{n}": t.clone() for n, t in self.model.state_dict().items()}
        return (
            weights
            | {f"optimizer/{n}": t for n, t in self._stepper.state().items()}
            | {"epoch": torch.tensor(self.epoch)}
        )

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take up the run where `state` left it."""
        if "epoch" not in state:
            raise WeightsError("the checkpoint has no epoch; it is not one of a training. Delete it to start anew")
        self.epoch = int(state["epoch"])
        parts = [
            {n.split("/", 1)[1]: t for n, t in state.items() if n.startswith(p)} for p in ("weights/", "optimizer/")
        ]
        self.model.load_state_dict(parts[0])
        self._stepper.load_state(parts[1])


def run_training(training: Training, *, check_every: int = 20) -> float:
    """Run to the end without watching; the mean loss of the last epoch. Stops with an error at a loss that is not
    finite.
    """
    this_epoch: list[Tensor] = []
    last = 0.0
    for update in training.updates():
        this_epoch.append(update.losses["train"])
        if update.ends_epoch or len(this_epoch) % check_every == 0:
            last = check_finite(this_epoch, training, update.step)
        if update.ends_epoch:
            this_epoch.clear()
    return last


def check_finite(recent: Sequence[Tensor], training: Training, step: int) -> float:
    """The mean of recent losses, or an error that says where training stopped being finite."""
    value = float(torch.stack(list(recent)).mean())
    if not isfinite(value):
        raise DivergedError(
            f"the training loss is {value} near update {step}; lower the learning rate (lr={training.recipe.lr}) "
            "or look for extreme values in the data",
            state={},
            update=step,
        )
    return value
