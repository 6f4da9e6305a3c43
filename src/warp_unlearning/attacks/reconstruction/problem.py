"""The search for images whose predicted updates are those that were read: n targets with r restarts each, at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import torch
from torch import Tensor

from ...data.preprocess import Pixels
from ...errors import InputError
from ...gradients.alignment import alignment
from ...randomness import Streams
from .descent import Values, Variable, Watch
from .matching import TINY, distances, from_cosines
from .predicted import Predictor, Weights, in_groups
from .reading import Targets
from .total_variation import total_variation

# The weight of the total variation at so many pixels a side, chosen on other images than reported numbers are about.
_TV, _SIDE = 0.01, 32

Transform = Callable[[Weights, Values], Weights]


@dataclass(frozen=True)
class Search:
    """How long and in what steps: `restarts` starts of `iterations` steps at `rate`, in units of the range of a pixel,
    by signs or not, with the weight `tv` of the total variation. By default that grows with the images, 0.01 at 32
    pixels a side: the finer a picture is sampled, the more alike its neighbouring pixels are.
    """

    restarts: int = 2
    iterations: int = 1000
    rate: float = 0.05
    tv: float | None = None
    signed: bool = True

    def __post_init__(self) -> None:
        counts = (self.restarts, self.iterations)
        whole = all(isinstance(count, int) and not isinstance(count, bool) for count in counts)
        if not whole or self.rate == inf or self.tv == inf:
            raise InputError(
                f"the search has {self.restarts} restarts, {self.iterations} iterations, rate {self.rate} and tv "
                f"{self.tv}; give whole numbers of restarts and iterations, and finite rates"
            )
        if self.restarts < 1 or self.iterations < 1 or not self.rate > 0 or not (self.tv or 0.0) >= 0:
            raise InputError(
                f"the search has {self.restarts} restarts, {self.iterations} iterations, rate {self.rate} and tv "
                f"{self.tv}; give at least one restart and iteration, a positive rate and a tv of at least 0"
            )

    def image_variable(self, start: Tensor) -> Variable:
        """Images (b, count, ...) with values kept in [0, 1]."""
        return Variable(start, self.rate, self.signed, lambda v: v.clamp(0, 1))


@dataclass(frozen=True, eq=False)
class Candidates:
    """What every restart found: images (n, r, count, channels, height, width) and the distance (n, r) of what they
    predict from what was read, with no prior in it.
    """

    images: Tensor
    losses: Tensor


@dataclass(frozen=True, eq=False)
class Problem:
    """n targets; `labels` has shape (n, r, count), so that restarts may try different ones. `first` is the place of the
    first target among all, by which its draws are told from others'. `aligned` says that cosines can be found without
    the updates: one image a target, one step, and layers that have rules.
    """

    predictor: Predictor
    targets: Targets
    pixels: Pixels
    labels: Tensor
    first: int
    streams: Streams
    aligned: bool = False
    watch: Watch | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """n, r and count."""
        n, r, count = self.labels.shape
        return n, r, count

    def matching(self, images: Tensor, values: Values, transform: Transform | None = None) -> Tensor:
        """The distances (n·r,) of what images (n·r, count, ...) predict, changed by `transform`, from the targets."""
        n, _, count = self.shape
        if self.aligned and transform is None and self.targets.distance in ("cosine", "euclidean"):
            # Targets have unit length.
            inputs, labels = self.pixels.inputs(images).flatten(0, 1), self.labels.flatten()
            product, energy = alignment(self.predictor.model, inputs, labels, directions=self._directions)
            return from_cosines(product / energy.clamp(min=TINY).sqrt(), self.targets.distance)
        updates = self.predictor(self.pixels.inputs(images), self.labels.reshape(-1, count))
        updates = updates if transform is None else transform(updates, values)
        return distances(in_groups(updates, n), self.targets.values, self.targets.distance).flatten()

    @cached_property
    def _directions(self) -> dict[str, Tensor]:
        """The targets of all n·r searches, kernels laid out as convolutions take them."""
        r = self.shape[1]
        each = {name: t if r == 1 else t.repeat_interleave(r, 0) for name, t in self.targets.values.items()}
        return {
            name: t.flatten(0, 1).contiguous(memory_format=torch.channels_last).view(t.shape) if t.dim() == 5 else t
            for name, t in each.items()
        }

    def draws(self, what: str, *shape: int) -> Tensor:
        """Standard normal numbers (n·r, *shape), a target's own whatever others are searched for beside it."""
        n, r, _ = self.shape
        like = next(iter(self.targets.values.values()))
        rows = [
            torch.randn(*shape, generator=self.streams.generator(what, self.first + i, j))
            for i in range(n)
            for j in range(r)
        ]
        return torch.stack(rows).to(like)

    def image_variable(self, search: Search) -> Variable:
        """Images that start near grey."""
        return search.image_variable(first_images(self.draws("image", self.shape[2], *self.pixels.shape)))

    def candidates(self, images: Tensor, losses: Tensor) -> Candidates:
        """What was found for n·r searches, in n rows."""
        n, r, _ = self.shape
        return Candidates(images.detach().reshape(n, r, *images.shape[1:]), losses.detach().reshape(n, r))


def first_images(draws: Tensor) -> Tensor:
    """Where searches start: grey with a little of standard normal `draws` on it."""
    return (0.5 + 0.15 * draws).clamp(0, 1)


def tv_weight(search: Search, shape: Sequence[int]) -> float:
    """The weight of the total variation for images of that shape, (..., height, width)."""
    return _TV * max(shape[-2:]) / _SIDE if search.tv is None else search.tv


def smoothness(images: Tensor, search: Search) -> Tensor:
    """The weighted total variation of images (b, count, ...), the mean over those of one search, shape (b,)."""
    weight = tv_weight(search, images.shape)
    return weight * total_variation(images).mean(1) if weight else images.new_zeros(len(images))
