"""Training of one model, as a generator of updates that can be stopped and taken up again to the same weights."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from math import isfinite

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.examples import Examples, Given, index_device, take_later
from ..data.sampling import batch_shape, check_fill, crop_flip, draw_crop_flip, epoch
from ..errors import DivergedError, WeightsError
from ..models.modes import draws_nothing, enter_mode, predict
from ..randomness import LayerDraws, Streams
from .precision import lay_out, lay_out_batch
from .recipe import Recipe
from .repeated import Repeater
from .schedule import cosine
from .stepper import Number, Stepper
from .update import Update, Updates


class Training:
    """Trains `model` in place. Every epoch draws from streams of its own number, so a resumed run needs no generator
    state.

    `fill` is the value of a black pixel after normalisation, a number per channel, with which crops are padded. A
    `repeater` says otherwise than the recipe in what precision updates are computed, and whether they are captured.
    """

    def __init__(
        self,
        model: nn.Module,
        examples: Examples,
        *,
        recipe: Recipe,
        streams: Streams,
        fill: Sequence[float] = (0.0,),
        repeater: Repeater | None = None,
    ) -> None:
        self.model = lay_out(model)
        self.examples, self.recipe, self.streams = examples, recipe, streams
        self.epoch = 0
        self._stepper = Stepper(model, momentum=recipe.momentum, weight_decay=recipe.weight_decay)
        self._augments = bool(recipe.crop_padding or recipe.flip)
        if self._augments:
            check_fill(examples.take(torch.zeros(1, dtype=torch.int64)).x, fill)
        self._fill = torch.tensor(fill, dtype=self._stepper.parameters[0].dtype, device=examples.y.device)
        self._repeater = repeater or Repeater(examples.y.device, recipe.precision)

    def updates(self) -> Updates:
        """Train from the current epoch to the last, one update a step."""
        batches, _ = batch_shape(len(self.examples), self.recipe.batch_size)
        of = self.recipe.epochs * batches
        enter_mode(self.model, "train")
        quiet = self._repeater.capture and draws_nothing(self.model)
        # Held by this generator alone: a training that held it would hold itself, and its memory, until it is noticed.
        update = self._repeater(self._augmented_update if self._augments else self._update)
        while self.epoch < self.recipe.epochs:
            lr = self.recipe.lr * cosine(self.epoch / self.recipe.epochs)
            draws = LayerDraws(self.streams.number("layers", self.epoch), device=self.examples.y.device, none=quiet)
            first = self.epoch * batches
            for i, batch in enumerate(self._batches(), 1):
                with draws:
                    losses = update(*batch, lr)
                if i == batches:
                    self.epoch += 1
                moved = yield Update(first + i, of, (first + i - 1) // batches, i == batches, losses)
                self._stepper.carry(moved)

    def _batches(self) -> Iterator[tuple[Given, ...]]:
        """Inputs and labels of this epoch's batches, and how to shift and mirror them where they are augmented."""
        count, recipe = len(self.examples), self.recipe
        order = self.streams.generator("batches", self.epoch)
        batches = epoch(count, recipe.batch_size, generator=order, device=index_device(self.examples))
        if not self._augments:
            yield from (take_later(self.examples, index) for index in batches)
            return
        noise = self.streams.generator("augmentation", self.epoch)
        number, size = batch_shape(count, recipe.batch_size)
        each = (
            draw_crop_flip(size, padding=recipe.crop_padding, flip=recipe.flip, generator=noise) for _ in range(number)
        )
        drawn = torch.stack(list(each)).to(self._fill.device)
        for index, how in zip(batches, drawn.unbind(), strict=True):
            yield *take_later(self.examples, index), how

    def _augmented_update(self, x: Tensor, y: Tensor, drawn: Tensor, lr: Number) -> dict[str, Tensor]:
        return self._update(crop_flip(x, drawn, self._fill.to(x.dtype)), y, lr)

    def _update(self, x: Tensor, y: Tensor, lr: Number) -> dict[str, Tensor]:
        logits = predict(self.model, lay_out_batch(x))
        loss = F.cross_entropy(logits.float() if logits.dtype == torch.bfloat16 else logits, y)
        self._stepper.step(loss, lr=lr)
        return {"train": loss}

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


def training_steps(training: Training, *, check_every: int = 10) -> Generator[Update, None, None]:
    """Run to the end, an update at a time, so that many trainings can take turns; losses are read once in so many
    epochs, and one that is not finite is an error.
    """
    recent: list[Tensor] = []
    for update in training.updates():
        recent.append(update.losses["train"])
        if update.ends_epoch and ((update.epoch + 1) % check_every == 0 or update.step == update.of):
            check_finite(recent, training, update.step)
            recent.clear()
        yield update


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
