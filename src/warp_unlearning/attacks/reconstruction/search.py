"""Searches for images by Adam, many at once, and the distance that they make small.

n targets have r searches each. Every variable has shape (n·r, ...), and the loss of a search depends on its own rows
alone, so that its steps are those that it would take by itself. As in gradient inversion, steps may go by the sign of
the gradient, the rate is divided by 10 at 3/8, 5/8 and 7/8 of the way, and every step ends with a projection. A step
reads no value back, so that on a GPU it is captured once and replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...data.preprocess import Pixels
from ...errors import InputError
from ...gpu.graphs import Captured
from ...gradients.energy import alignment, exact_derivatives
from ...gradients.per_sample import example_gradients
from ...gradients.tracing import TwiceDifferentiable
from ...randomness import Streams
from .targets import Targets, distance_of, distances
from .threat import Threat

Values = Mapping[str, Tensor]
Objective = Callable[[Values], Tensor]
Transform = Callable[[dict[str, Tensor]], dict[str, Tensor]]

_FIRST, _SECOND, _TINY = 0.9, 0.999, 1e-8
# The weight of the total variation at so many pixels a side, chosen on other images than reported numbers are about.
_TV, _SIDE = 0.01, 32


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
        whole = all(isinstance(count, int) and not isinstance(count, bool) and count >= 1 for count in counts)
        if not whole or not 0 < self.rate < inf or not 0 <= (self.tv or 0.0) < inf:
            raise InputError(
                f"the search has {self.restarts} restarts, {self.iterations} iterations, rate {self.rate} and tv "
                f"{self.tv}; give whole numbers of at least 1 restart and iteration, a finite positive rate and a "
                "finite tv of at least 0"
            )

    def image_variable(self, draws: Tensor) -> Variable:
        """Images that start grey with a little of standard normal `draws` on it, and stay in [0, 1]."""
        return Variable((0.5 + 0.15 * draws).clamp(0, 1), self.rate, self.signed, lambda v: v.clamp(0, 1))

    def tv_weight(self, shape: Sequence[int]) -> float:
        """The weight of the total variation for images of that shape, (..., height, width)."""
        return _TV * max(shape[-2:]) / _SIDE if self.tv is None else self.tv

    def smoothness(self, images: Tensor) -> Tensor:
        """The weighted total variation of images (b, count, ...), the mean over those of one search, shape (b,)."""
        weight = self.tv_weight(images.shape)
        return weight * total_variation(images).mean(1) if weight else images.new_zeros(len(images))


@dataclass(frozen=True, eq=False)
class Variable:
    """Where a variable starts, (problems, ...), its rate, which may differ by problem, whether it moves by signs, and
    the projection after each step.
    """

    start: Tensor
    rate: float | Tensor
    signed: bool = False
    project: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True, eq=False)
class Found:
    """The values with the least loss that each problem came through, and these losses, shape (problems,)."""

    values: dict[str, Tensor]
    losses: Tensor


def descend(
    variables: Mapping[str, Variable],
    objective: Objective,
    *,
    iterations: int,
    in_turn: bool = False,
) -> Found:
    """Minimise `objective`, which gives the loss of every problem. With `in_turn` one variable moves at a time, each as
    often as `iterations`. A problem whose loss is not finite keeps the best it had.
    """
    walk = _Walk(variables, objective)
    turns = [_Step(walk, [name]) for name in variables] if in_turn else [_Step(walk, list(variables))]
    for step in range(iterations * len(turns)):
        part = step // len(turns) / iterations
        turns[step % len(turns)](10.0 ** -sum(part >= point for point in (3 / 8, 5 / 8, 7 / 8)))
    # Where the last step led.
    with torch.no_grad():
        walk.keep_better(objective(walk.now))
    return Found(walk.best, walk.losses)


class _Walk:
    """The state of a search, all of it in tensors that stay where they are."""

    def __init__(self, variables: Mapping[str, Variable], objective: Objective) -> None:
        self._variables, self._objective = variables, objective
        self.now = {name: v.start.detach().clone().requires_grad_(True) for name, v in variables.items()}
        self.best = {name: value.detach().clone() for name, value in self.now.items()}
        first = next(iter(self.best.values()))
        self.losses = first.new_full((len(first),), torch.inf)
        self._moments = {name: (torch.zeros_like(v), torch.zeros_like(v)) for name, v in self.best.items()}
        self._counts = {name: first.new_zeros(()) for name in self.best}

    def advance(self, moving: list[str], factor: Tensor | float) -> None:
        """Keep what is better here, and move these variables."""
        with torch.enable_grad():
            losses = self._objective(self.now)
            gradients = torch.autograd.grad(losses.sum(), [self.now[name] for name in moving])
        with torch.no_grad():
            self.keep_better(losses)
            for name, gradient in zip(moving, gradients, strict=True):
                self._move(name, gradient, factor)

    def keep_better(self, losses: Tensor) -> None:
        found = torch.where(losses.isfinite(), losses, torch.inf)
        better = found < self.losses
        for name, value in self.now.items():
            torch.where(_as_wide(better, value), value, self.best[name], out=self.best[name])
        torch.minimum(self.losses, found, out=self.losses)

    def _move(self, name: str, gradient: Tensor, factor: Tensor | float) -> None:
        v, value, count = self._variables[name], self.now[name], self._counts[name]
        gradient = gradient.nan_to_num(0.0, 0.0, 0.0)
        gradient = gradient.sign() if v.signed else gradient
        mean, square = self._moments[name]
        mean.lerp_(gradient, 1 - _FIRST)
        square.mul_(_SECOND).addcmul_(gradient, gradient, value=1 - _SECOND)
        count.add_(1)
        deviation = (square / (1 - _SECOND**count)).sqrt_().add_(_TINY)
        rate = _as_wide(v.rate, value) if isinstance(v.rate, Tensor) else v.rate
        value.sub_(factor * rate * (mean / (1 - _FIRST**count)) / deviation)
        if v.project is not None:
            value.copy_(v.project(value))


class _Step:
    """A step of some variables, replayed as a graph on a GPU; computed plainly where it cannot be captured."""

    def __init__(self, walk: _Walk, moving: list[str]) -> None:
        def step(factor: Tensor | float) -> dict[str, Tensor]:
            walk.advance(moving, factor)
            return {}

        self._plain, self._losses = step, walk.losses
        self._captured: Captured | None = Captured(step, walk.losses.device) if walk.losses.is_cuda else None

    def __call__(self, factor: float) -> None:
        if self._captured is not None:
            try:
                # As precise as the search; a plain number would be one of 32 bits in the graph.
                self._captured(self._losses.new_full((), factor))
                return
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:
                # Nothing that is being captured has happened yet.
                self._captured = None
        self._plain(factor)


@dataclass(frozen=True, eq=False)
class Candidates:
    """What every search found: images (n, r, count, channels, height, width), and the distances (n, r) of their updates
    from the targets, without a prior.
    """

    images: Tensor
    losses: Tensor


@dataclass(frozen=True, eq=False)
class SearchProblem:
    """Images whose gradients at `model` point along n targets, those of `threats`, with r searches each.

    `labels` has shape (n, r, count), so that searches may try different ones. `first` is the place of the first target
    among all, which its draws depend on. `aligned` says that cosines can be found without the updates: one image a
    target, and layers that have rules.
    """

    model: nn.Module
    threats: Sequence[Threat]
    targets: Targets
    labels: Tensor
    search: Search
    streams: Streams
    first: int = 0
    aligned: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """n, r and count."""
        n, r, count = self.labels.shape
        return n, r, count

    @property
    def _single(self) -> bool:
        """One search: its update is a gradient, and the rules that keep examples apart only cost time."""
        return self.labels.shape[:2] == (1, 1)

    @property
    def pixels(self) -> Pixels:
        """The form of the images."""
        return self.threats[0].pixels

    def updates(self, images: Tensor) -> dict[str, Tensor]:
        """The gradients (n·r, *parameter) of the mean loss of images (n·r, count, ...), differentiable in these."""
        count, names = self.shape[2], list(self.targets.values)
        inputs, labels = self.pixels.inputs(images).flatten(0, 1), self.labels.flatten()
        if self._single:
            places = dict(self.model.named_parameters())
            with exact_derivatives(inputs), TwiceDifferentiable():
                loss = F.cross_entropy(self.model(inputs), labels)
                found = torch.autograd.grad(
                    loss, [places[name] for name in names], create_graph=True, materialize_grads=True
                )
            return {name: g[None] for name, g in zip(names, found, strict=True)}
        each = example_gradients(self.model, inputs, labels, names=names)
        return each if count == 1 else {name: g.reshape(-1, count, *g.shape[1:]).mean(1) for name, g in each.items()}

    def matching(self, images: Tensor, transform: Transform | None = None) -> Tensor:
        """The distances (n·r,) of the updates of images (n·r, count, ...), changed by `transform`, from the targets."""
        targets = self.targets
        if self.aligned and not self._single and transform is None and targets.distance in ("cosine", "euclidean"):
            inputs, labels = self.pixels.inputs(images).flatten(0, 1), self.labels.flatten()
            product, energy = alignment(self.model, inputs, labels, directions=self._target_of_each)
            return distance_of(product, energy, targets.distance)
        updates = self.updates(images)
        updates = updates if transform is None else transform(updates)
        grouped = {name: u.reshape(*self.shape[:2], *u.shape[1:]) for name, u in updates.items()}
        return distances(grouped, targets.values, targets.distance).flatten()

    @cached_property
    def _target_of_each(self) -> dict[str, Tensor]:
        """The target (n·r, *parameter) of each search: every one of the n targets for its r restarts in turn."""
        found = {name: t.repeat_interleave(self.shape[1], 0) for name, t in self.targets.values.items()}
        for name, t in found.items():
            if t.dim() == 5:
                # Laid out as convolutions read kernels, so that no step of the search copies them.
                found[name] = t.flatten(0, 1).contiguous(memory_format=torch.channels_last).view(t.shape)
        return found

    def draws(self, what: str, *shape: int) -> Tensor:
        """Standard normal numbers (n·r, *shape), a target's own whatever others are searched for beside it."""
        n, r, _ = self.shape
        places = [(self.first + i, j) for i in range(n) for j in range(r)]
        return drawn(self.streams, what, places, shape).to(self.labels.device, self.threats[0].dtype)

    def image_variable(self) -> Variable:
        """Images (n·r, count, ...) that start near grey and stay in [0, 1]."""
        return self.search.image_variable(self.draws("image", self.shape[2], *self.pixels.shape))

    def minimise(self, variables: Mapping[str, Variable], loss: Objective, *, in_turn: bool = False) -> Found:
        """`descend` for the iterations of the search."""
        return descend(variables, loss, iterations=self.search.iterations, in_turn=in_turn)

    def candidates(self, images: Tensor, losses: Tensor) -> Candidates:
        """What was found for n·r searches, in n rows."""
        n, r, _ = self.shape
        return Candidates(images.detach().reshape(n, r, *images.shape[1:]), losses.detach().reshape(n, r))


def drawn(streams: Streams, what: str, places: Sequence[tuple[int, int]], shape: Sequence[int]) -> Tensor:
    """Standard normal numbers (places, *shape), for each target and restart its own."""
    return torch.stack([torch.randn(*shape, generator=streams.generator(what, i, j)) for i, j in places])


def total_variation(images: Tensor) -> Tensor:
    """The mean |dx| + mean |dy| of images (..., channels, height, width), shape (...)."""
    found = images.new_zeros(images.shape[:-3])
    for axis in (-1, -2):
        if images.shape[axis] > 1:
            found = found + images.diff(dim=axis).abs().mean((-1, -2, -3))
    return found


def _as_wide(numbers: Tensor, value: Tensor) -> Tensor:
    """One number for each problem, to go with values (problems, ...)."""
    return numbers.reshape(-1, *[1] * (value.dim() - 1))
