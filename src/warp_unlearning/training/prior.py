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
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..data.examples import TensorExamples
from ..data.sampling import batch_shape, epoch, random_crop_flip
from ..errors import InputError, WeightsError
from ..models.fresh import reinitialise
from ..models.generator import ConvEncoder, ConvGenerator
from ..models.modes import norm_mode
from ..randomness import Streams
from .precision import Precision, autocast, lay_out, lay_out_batch
from .pyramid import pyramid_distance
from .schedule import cosine
from .stepper import Stepper
from .update import Update

_RISE = 0.02
"""The share of the run in which the learning rate rises."""
_LARGEST_NORM = 10.0
_LARGEST_LOG_VARIANCE = 10.0


@dataclass(frozen=True, kw_only=True)
class PriorRecipe:
    """The settings of one training: Adam, its rate annealed by a cosine after a short rise."""

    epochs: int = 60
    batch_size: int = 32
    lr: float = 3e-3
    noise: float = 0.05
    edges: float = 0.5
    flip: bool = False
    precision: Precision = "auto"

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1")
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
        of = self.recipe.epochs * batches
        self.pair.train()
        while self.epoch < self.recipe.epochs:
            order, noise, mirrors = (
                self.streams.generator(name, self.epoch) for name in ("batches", "latents", "mirrors")
            )
            first = self.epoch * batches
            for i, index in enumerate(epoch(len(self.images), self.recipe.batch_size, generator=order), 1):
                losses = self._step(index, noise, mirrors, self._rate((first + i - 1) / of))
                if i == batches:
                    self.epoch += 1
                yield Update(first + i, of, (first + i - 1) // batches, i == batches, losses)

    def _rate(self, progress: float) -> float:
        return self.recipe.lr * min(1.0, 0.1 + progress / _RISE) * cosine(progress)

    def _step(self, index: Tensor, noise: torch.Generator, mirrors: torch.Generator, lr: float) -> Mapping[str, Tensor]:
        x, y = self.images.take(index)
        if self.recipe.flip:
            x = random_crop_flip(x, padding=0, flip=True, fill=(0.0,), generator=mirrors)
        drawn = torch.randn(len(x), *self.generator.latent, generator=noise).to(x.device, non_blocking=True)
        with autocast(x.device, self.recipe.precision):
            mean, log_variance = (part.float() for part in self.encoder(lay_out_batch(x)))
            log_variance = log_variance.clamp(-_LARGEST_LOG_VARIANCE, _LARGEST_LOG_VARIANCE)
            drawn_images = self.generator(mean + (log_variance / 2).exp() * drawn, self._labels(y)).float()
        terms = prior_loss(x, drawn_images, mean, log_variance, recipe=self.recipe)
        # Kernels of one channel may get gradients in another memory layout than their own, which step_along mends.
        gradients = torch.autograd.grad(terms["prior"], self._stepper.parameters)
        self._stepper.step_along(dict(zip(self._stepper.names, gradients, strict=True)), lr=lr)
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
        weights = {f"weights/{n}": t.clone() for n, t in self.pair.state_dict().items()}
        optimizer = {f"optimizer/{n}": t for n, t in self._stepper.state().items()}
        return weights | optimizer | {"epoch": torch.tensor(self.epoch)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up the run where `state` left it."""
        if "epoch" not in state:
            raise WeightsError("the checkpoint has no epoch; it is not one of a training. Delete it to start anew")
        weights, optimizer = (
            {n.removeprefix(p): t for n, t in state.items() if n.startswith(p)} for p in ("weights/", "optimizer/")
        )
        self.pair.load_state_dict(weights)
        # A fused optimizer wants even its counters on the device.
        self._stepper.load_state({n: t.to(self.images.x.device) for n, t in optimizer.items()})
        self.epoch = int(state["epoch"])


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


def _check_images(generator: ConvGenerator, images: TensorExamples) -> None:
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
