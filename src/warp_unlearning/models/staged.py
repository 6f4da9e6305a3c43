"""Generators of images as lists of stages: the protocol, running one from latents or from any stage on, and a check.

Stage 0 maps latents (n, *latent), which are standard normal a priori, to features; each other stage maps the features
of the one before; the last gives images (n, channels, height, width) with values in [0, 1]. A search over images may
so start from latents and go on from the features of any stage.

A generator with `classes` is conditional: it is a `Conditional`, whose `condition` makes one tensor of latents and
labels, and each of its stages takes that tensor as a second argument. The features of a stage then mean something only
beside the condition they were made with, which stays as it is while they are searched over.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from ..errors import InputError

_OUTSIDE = 1e-4
"""How far beyond [0, 1] rounding may carry a value."""


@runtime_checkable
class Staged(Protocol):
    """A generator of images in stages. `classes` is None where it takes no labels."""

    @property
    def latent(self) -> tuple[int, ...]:
        """The shape of one latent."""

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""

    @property
    def classes(self) -> int | None:
        """The number of labels, or None."""

    @property
    def stages(self) -> Sequence[nn.Module]:
        """The stages, in order; there is at least one."""


@runtime_checkable
class Conditional(Staged, Protocol):
    """A generator that draws images of a class."""

    def condition(self, latents: Tensor, labels: Tensor) -> Tensor:
        """What every stage gets beside its features, shape (n, ...)."""


@dataclass(frozen=True, eq=False)
class StageList:
    """Modules of anybody's as a generator without labels.

    >>> pixels = nn.Sequential(nn.Linear(2, 4), nn.Sigmoid(), nn.Unflatten(1, (1, 2, 2)))
    >>> mine = StageList([nn.Linear(3, 2), pixels], latent=(3,), image_shape=(1, 2, 2))
    >>> tuple(generate(mine, torch.zeros(5, 3)).shape)
    (5, 1, 2, 2)
    """

    stages: Sequence[nn.Module]
    latent: tuple[int, ...]
    image_shape: tuple[int, int, int]
    classes: None = None


def draw_latents(generator: Staged, count: int, *, random: torch.Generator) -> Tensor:
    """Standard normal latents (count, *latent) on the CPU."""
    return torch.randn(count, *generator.latent, generator=random)


def condition_of(generator: Staged, latents: Tensor, labels: Tensor | None) -> Tensor | None:
    """The second argument of every stage, or None for a generator without labels, which ignores those given."""
    if generator.classes is None:
        return None
    if not isinstance(generator, Conditional):
        raise InputError(
            f"{type(generator).__name__} has {generator.classes} classes and no method condition(latents, labels); "
            "define it, or set classes to None"
        )
    if labels is None:
        raise InputError(
            f"{type(generator).__name__} draws images of {generator.classes} classes and got no labels; give one for "
            "each latent, or use a generator without classes"
        )
    return generator.condition(latents, labels)


def generate(generator: Staged, latents: Tensor, labels: Tensor | None = None) -> Tensor:
    """The images (n, channels, height, width) of latents (n, *latent), and labels (n,) for a conditional generator."""
    return generate_from(generator, latents, 0, condition=condition_of(generator, latents, labels))


def generate_from(generator: Staged, features: Tensor, stage: int, *, condition: Tensor | None = None) -> Tensor:
    """The images of what goes into stage number `stage`: latents for stage 0, else the features of the one before."""
    return _run(generator.stages[stage:], features, condition)


def features_at(generator: Staged, latents: Tensor, stage: int, *, condition: Tensor | None = None) -> Tensor:
    """What goes into stage number `stage` for these latents, so that `generate_from` at that stage gives their
    images.
    """
    return _run(generator.stages[:stage], latents, condition)


def _run(stages: Sequence[nn.Module], features: Tensor, condition: Tensor | None) -> Tensor:
    for stage in stages:
        features = cast(Tensor, stage(features) if condition is None else stage(features, condition))
    return features


def frozen_copy(generator: Staged) -> Staged:
    """The generator in eval mode with weights that ask for no gradient; the one given stays as it is."""
    copy = deepcopy(generator)
    for stage in copy.stages:
        stage.eval().requires_grad_(False)
    return copy


def dtype_of(generator: Staged) -> torch.dtype:
    """The precision of a generator's weights, float32 where it has none."""
    for stage in generator.stages:
        for p in stage.parameters():
            if p.is_floating_point():
                return p.dtype
    return torch.float32


@torch.no_grad()
def check_generator(generator: Staged, *, shape: tuple[int, ...], device: torch.device | str = "cpu") -> None:
    """Raise where `generator` cannot stand for images of `shape`: its own size differs, a stage fails, or images come
    out with another size, outside [0, 1] or not finite. Two images are drawn to see.
    """
    if not generator.stages:
        raise InputError("the generator has no stages; give at least one that maps latents to images")
    if tuple(generator.image_shape) != tuple(shape):
        raise InputError(
            f"the generator draws images {_text(generator.image_shape)} and those looked for are {_text(shape)}; train "
            "one on such images with `warp train-prior`, or have its last stage resize them"
        )
    latents = draw_latents(generator, 2, random=torch.Generator().manual_seed(0)).to(device, dtype_of(generator))
    labels = None if generator.classes is None else torch.arange(2, device=device) % generator.classes
    try:
        images = generate(generator, latents, labels)
    except (RuntimeError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"the generator cannot take latents {_text(generator.latent)} on {device}: {reason}; its stages must fit "
            "its latent and each other, and be on that device"
        ) from error
    _check_images(images, tuple(shape))


def _check_images(images: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(images.shape) != (2, *shape):
        raise InputError(
            f"the generator says that its images are {_text(shape)} and two of them came out as {tuple(images.shape)}; "
            "mend its last stage or its image_shape"
        )
    if not bool(images.isfinite().all()):
        raise InputError(
            "the generator draws values that are not finite; its weights are damaged: load or train others"
        )
    low, high = float(images.min()), float(images.max())
    if low < -_OUTSIDE or high > 1 + _OUTSIDE:
        raise InputError(
            f"the generator draws values from {low:.3g} to {high:.3g} and images lie in [0, 1]; end its last stage "
            "with a sigmoid, or map its range there"
        )


def _text(shape: Sequence[int]) -> str:
    return "×".join(str(size) for size in shape)
