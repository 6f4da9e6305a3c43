"""Training of one model, as a generator of updates that can be stopped and taken up again to the same weights.

SGD with momentum under a cosine schedule, on augmented batches. Runs train originals and shadow models by it, and the
methods `retrain` and `finetune` take their updates from it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.examples import Examples, TensorExamples, index_device
from ..data.sampling import batch_shape, check_fill, crop_flip, draw_crop_flip, epoch
from ..errors import DivergedError, InputError
from ..gpu.graphs import Compute, Function, Number
from ..gpu.precision import Precision, lay_out, lay_out_batch
from ..models.modes import draws_nothing, enter_mode, predict
from ..randomness import LayerDraws, Streams
from .stepper import Stepper, checkpoint, restore
from .update import Update, Updates, cosine


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of one training; the learning rate falls from `lr` by a cosine, once an epoch. `crop_padding` is by
    how many pixels random crops may be shifted, `flip` mirrors images at random.
    """

    epochs: int = 20
    batch_size: int = 64
    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 5e-4
    crop_padding: int = 0
    flip: bool = False
    precision: Precision = "auto"

    def __post_init__(self) -> None:
        require_counts(epochs=self.epochs, batch_size=self.batch_size)
        if self.lr <= 0 or not 0 <= self.momentum < 1 or self.weight_decay < 0 or self.crop_padding < 0:
            raise InputError(
                f"lr={self.lr}, momentum={self.momentum}, weight_decay={self.weight_decay}, "
                f"crop_padding={self.crop_padding}; lr must be positive, momentum in [0, 1), the others not negative"
            )


def require_counts(**counts: int) -> None:
    """An error where one of these is below 1."""
    for name, count in counts.items():
        if count < 1:
            raise InputError(f"{name} is {count}; it must be at least 1")


RECIPES = {
    "small": Recipe(),
    # 23,750 CIFAR-10 images, ResNet-18 with the ImageNet stem: test accuracy 0.815 to 0.820.
    "paper": Recipe(epochs=91, batch_size=256, lr=0.1, crop_padding=4, flip=True),
}


class Training:
    """Trains `model` in place. Every epoch draws from streams with its number, so a resumed run needs no state of
    generators.

    `fill` is the value of a black pixel after normalisation, a number per channel, with which crops are padded.
    `compute` decides in place of the recipe in what precision updates are computed, and whether they are captured.
    """

    def __init__(
        self,
        model: nn.Module,
        examples: Examples,
        *,
        recipe: Recipe,
        streams: Streams,
        fill: Sequence[float] = (0.0,),
        compute: Compute | None = None,
    ) -> None:
        self.model = lay_out(model)
        self.examples, self.recipe, self.streams = examples, recipe, streams
        self.epoch = 0
        self._stepper = Stepper(model, momentum=recipe.momentum, weight_decay=recipe.weight_decay)
        self._augments = bool(recipe.crop_padding or recipe.flip)
        self._on_device = isinstance(examples, TensorExamples)
        if self._augments:
            check_fill(examples.take(torch.zeros(1, dtype=torch.int64)).x, fill)
        self._fill = torch.tensor(fill, dtype=self._stepper.parameters[0].dtype, device=examples.y.device)
        self._compute = compute or Compute(examples.y.device, recipe.precision)

    def updates(self) -> Updates:
        """Train from the current epoch to the last, one update a step.

        Send in the move that the caller made between updates, if any; the optimizer state follows it.
        """
        batches, _ = batch_shape(len(self.examples), self.recipe.batch_size)
        total = self.recipe.epochs * batches
        enter_mode(self.model, "train")
        layers_draw_nothing = self._compute.capture and draws_nothing(self.model)
        device = self.examples.y.device
        # Held by this generator alone: a training that held it would be a cycle, and keep its graph until collected.
        function = self._augmented_update if self._augments else self._update
        update = self._compute.update(partial(self._fetched, function) if self._on_device else function)
        while self.epoch < self.recipe.epochs:
            lr = self.recipe.lr * cosine(self.epoch / self.recipe.epochs)
            draws = LayerDraws(self.streams.number("layers", self.epoch), device=device, none=layers_draw_nothing)
            steps_before = self.epoch * batches
            for i, batch in enumerate(self._batches(), 1):
                with draws:
                    losses = update(*batch, lr)
                if i == batches:
                    self.epoch += 1
                step = steps_before + i
                move = yield Update(step, total, (step - 1) // batches, i == batches, losses)
                self._stepper.carry(move)

    def _batches(self) -> Iterator[tuple[Tensor, ...]]:
        """The batches of an epoch: inputs and labels, or the positions of examples that lie on the device, and if
        augmented, the shift and mirroring of each example.
        """
        recipe = self.recipe
        order = self.streams.generator("batches", self.epoch)
        batches = epoch(len(self.examples), recipe.batch_size, generator=order, device=index_device(self.examples))
        take = (lambda index: (index,)) if self._on_device else self.examples.take
        if not self._augments:
            yield from map(take, batches)
            return
        noise = self.streams.generator("augmentation", self.epoch)
        count, size = batch_shape(len(self.examples), recipe.batch_size)
        draws = [
            draw_crop_flip(size, padding=recipe.crop_padding, flip=recipe.flip, generator=noise) for _ in range(count)
        ]
        # Sent to the device all at once.
        for index, draw in zip(batches, torch.stack(draws).to(self._fill.device).unbind(), strict=True):
            yield *take(index), draw

    def _fetched(self, update: Function, index: Tensor, *others: Number) -> Mapping[str, Tensor]:
        """Take the examples and call the update: within a graph that is fewer launches, and no copy of the inputs."""
        return update(*self.examples.take(index), *others)

    def _augmented_update(self, x: Tensor, y: Tensor, drawn: Tensor, lr: Number) -> dict[str, Tensor]:
        """One update on images shifted and mirrored as `drawn`."""
        return self._update(crop_flip(x, drawn, self._fill.to(x.dtype)), y, lr)

    def _update(self, x: Tensor, y: Tensor, lr: Number) -> dict[str, Tensor]:
        """One step down the cross-entropy of a batch; what a graph captures. Returns the loss."""
        logits = predict(self.model, lay_out_batch(x))
        loss = F.cross_entropy(logits.float() if logits.dtype == torch.bfloat16 else logits, y)
        self._stepper.step(loss, lr=lr)
        return {"train": loss}

    def state(self) -> dict[str, Tensor]:
        """Weights, optimizer state and epoch: everything that decides the rest of the run. Only between epochs."""
        return checkpoint(self.model, self._stepper, self.epoch)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore a run to where `state` was taken."""
        self.epoch = restore(self.model, self._stepper, state)


def run_training(training: Training) -> None:
    """Run to the end; a loss that is not finite is an error at the end of its epoch."""
    for _ in training_steps(training, check_every=1):
        pass


def training_steps(training: Training, *, check_every: int = 10) -> Generator[Update, None, None]:
    """Run to the end and yield each update, so that many trainings can run side by side. Losses are read once in
    `check_every` epochs, since reading waits for the GPU; one that is not finite is an error.
    """
    recent: list[Tensor] = []
    for update in training.updates():
        recent.append(update.losses["train"])
        if update.ends_epoch and ((update.epoch + 1) % check_every == 0 or update.step == update.total):
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
