"""Training of a generator on images, as a variational autoencoder: a generator of updates that can be taken up again.

With q(z | x) = N(m, s²) from the encoder, ε standard normal and x̂ = G(m + s·ε), an update descends

    mean (x − x̂)² / 2σ² + edges · Σ_j mean |band_j(x − x̂)| / σ + KL(q ‖ N(0, 1)) / values of an image,

the negative evidence bound in nats for each value of an image under pixel noise σ, with the Laplacian pyramid between.
A search for an image by its gradient wants three things of G, and each term gives one. Squares alone are least for the
mean of all images that m could stand for, which is blurred, and gradients see edges: absolute differences in every
band are least for a sharp one. The divergence keeps latents where standard normal starts land and neighbours alike, so
that the search can go downhill. And σ decides how much of an image a latent tells: it is small, because an image that
the generator cannot draw cannot be found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..data.examples import TensorExamples
from ..data.sampling import batch_shape, epoch, random_crop_flip
from ..errors import InputError
from ..gpu.precision import Precision, autocast, lay_out, lay_out_batch
from ..models.fresh import reinitialise
from ..models.generator import ConvEncoder, ConvGenerator
from ..models.modes import norm_mode
from ..randomness import Streams
from .stepper import Stepper, checkpoint, restore
from .training import require_counts
from .update import Update, cosine

# The share of the run in which the learning rate rises.
_WARM_UP = 0.02
_LARGEST_NORM = 10.0
_LARGEST_LOG_VARIANCE = 10.0


@dataclass(frozen=True, kw_only=True)
class PriorRecipe:
    """The settings of one training: Adam, its learning rate annealed by a cosine after a short rise. `noise` is σ and
    `edges` the weight of the pyramid; `flip` mirrors images at random.
    """

    epochs: int = 60
    batch_size: int = 32
    lr: float = 3e-3
    noise: float = 0.05
    edges: float = 0.5
    flip: bool = False
    precision: Precision = "auto"

    def __post_init__(self) -> None:
        require_counts(epochs=self.epochs, batch_size=self.batch_size)
        if not (self.lr > 0 and self.noise > 0 and self.edges >= 0):
            raise InputError(
                f"lr={self.lr}, noise={self.noise}, edges={self.edges}; lr and noise must be above 0, edges not below"
            )


class PriorTraining:
    """Trains `generator` in place on images (n, channels, h, w) with values in [0, 1], and an encoder with it.

    Both start from weights drawn from `streams`, and every epoch draws from streams of its own number, so a run that is
    taken up again needs no generator state. The labels of `images` are looked at only by a generator with classes.
    """

    def __init__(
        self, generator: ConvGenerator, images: TensorExamples, *, recipe: PriorRecipe, streams: Streams
    ) -> None:
        _check_images(generator, images)
        device = images.x.device
        encoder = ConvEncoder(shape=generator.image_shape, latent=generator.latent[0], width=generator.width)
        self.pair = nn.ModuleDict({"generator": generator, "encoder": encoder})
        reinitialise(self.pair, generator=streams.generator("initial weights"))
        lay_out(self.pair.to(device))
        self.generator, self.encoder = generator, encoder
        self.images, self.recipe, self.streams = images, recipe, streams
        self.epoch = 0
        self._stepper = Stepper(self.pair, optimizer="adam", max_norm=_LARGEST_NORM)

    def updates(self) -> Iterator[Update]:
        """Train from the current epoch to the last, one update a step."""
        batches, _ = batch_shape(len(self.images), self.recipe.batch_size)
        total = self.recipe.epochs * batches
        self.pair.train()
        while self.epoch < self.recipe.epochs:
            order, noise, mirrors = (
                self.streams.generator(name, self.epoch) for name in ("batches", "latents", "mirrors")
            )
            steps_before = self.epoch * batches
            for i, index in enumerate(epoch(len(self.images), self.recipe.batch_size, generator=order), 1):
                step = steps_before + i
                losses = self._step(index, noise, mirrors, self._learning_rate((step - 1) / total))
                if i == batches:
                    self.epoch += 1
                yield Update(step, total, (step - 1) // batches, i == batches, losses)

    def _learning_rate(self, progress: float) -> float:
        return self.recipe.lr * min(1.0, 0.1 + progress / _WARM_UP) * cosine(progress)

    def _step(self, index: Tensor, noise: torch.Generator, mirrors: torch.Generator, lr: float) -> Mapping[str, Tensor]:
        """Take one update on the images `index`; returns the terms of the loss."""
        x, y = self.images.take(index)
        if self.recipe.flip:
            x = random_crop_flip(x, padding=0, flip=True, fill=(0.0,), generator=mirrors)
        drawn = torch.randn(len(x), *self.generator.latent, generator=noise).to(x.device, non_blocking=True)
        with autocast(x.device, self.recipe.precision):
            mean, log_variance = (part.float() for part in self.encoder(lay_out_batch(x)))
            log_variance = log_variance.clamp(-_LARGEST_LOG_VARIANCE, _LARGEST_LOG_VARIANCE)
            drawn_images = self.generator(mean + (log_variance / 2).exp() * drawn, self._labels(y)).float()
        terms = prior_loss(x, drawn_images, mean, log_variance, recipe=self.recipe)
        self._stepper.step(terms["prior"], lr=lr)
        return {name: term.detach() for name, term in terms.items()}

    def _labels(self, y: Tensor) -> Tensor | None:
        return None if self.generator.classes is None else y

    @torch.no_grad()
    def reconstruct(self, images: TensorExamples, *, batch_size: int = 1024) -> Tensor:
        """The images that the generator makes of the mean latents of `images`, in float32."""
        with norm_mode(self.pair, "eval"):
            parts = [
                self.generator(self.encoder(x)[0], self._labels(y))
                for x, y in zip(torch.split(images.x, batch_size), torch.split(images.y, batch_size), strict=True)
            ]
        return torch.cat(parts)

    def state(self) -> dict[str, Tensor]:
        """Weights, optimizer state and epoch: everything that decides the rest of the run. Only between epochs."""
        return checkpoint(self.pair, self._stepper, self.epoch)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore a run to where `state` was taken."""
        self.epoch = restore(self.pair, self._stepper, state)


def prior_loss(
    images: Tensor, drawn: Tensor, mean: Tensor, log_variance: Tensor, *, recipe: PriorRecipe
) -> dict[str, Tensor]:
    """The loss that is descended, "prior", and its terms: "squares" (mean squared difference), "bands" (pyramid
    distance) and "divergence" (nats an image).
    """
    squares = F.mse_loss(drawn, images)
    bands = pyramid_distance(images, drawn)
    divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
    loss = squares / (2 * recipe.noise**2) + recipe.edges * bands / recipe.noise
    loss = loss + divergence / prod(images.shape[1:])
    return {"prior": loss, "squares": squares, "bands": bands, "divergence": divergence}


def laplacian_pyramid(images: Tensor) -> list[Tensor]:
    """The bands of images (n, c, h, w), finest first, and what is left below them.

    Band j is G_j − up(G_{j+1}), where G_0 are the images and G_{j+1} averages G_j over 2 by 2 pixels; levels end where
    a side is odd or below 4. The bands sum to the images when each is brought to their size by repeating pixels.
    """
    levels = [images]
    while all(size % 2 == 0 and size >= 4 for size in levels[-1].shape[2:]):
        levels.append(F.avg_pool2d(levels[-1], 2))
    bands = [fine - F.interpolate(coarse, scale_factor=2.0, mode="nearest") for fine, coarse in pairwise(levels)]
    return [*bands, levels[-1]]


def pyramid_distance(images: Tensor, others: Tensor) -> Tensor:
    """Σ_j mean |band_j(images − others)|: the mean absolute difference in each band, so that the few coarse numbers
    count as much as the many fine ones. A scalar.
    """
    means = [band.abs().mean() for band in laplacian_pyramid(images - others)]
    return sum(means[1:], means[0])


def _check_images(generator: ConvGenerator, images: TensorExamples) -> None:
    """Refuse too few images, those of another shape than the generator draws, and values outside of [0, 1]."""
    if len(images) < 2:
        raise InputError(f"there are {len(images)} images to learn from; give at least 2")
    if tuple(images.x.shape[1:]) != generator.image_shape:
        raise InputError(
            f"the generator draws images {generator.image_shape} and those to learn from are "
            f"{tuple(images.x.shape[1:])}; build it with shape={tuple(images.x.shape[1:])}"
        )
    low, high = float(images.x.min()), float(images.x.max())
    if not (low >= -1e-4 and high <= 1 + 1e-4):
        raise InputError(f"the images have values from {low:.3g} to {high:.3g}; scale them to [0, 1]")
