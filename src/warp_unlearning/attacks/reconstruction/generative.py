"""*generative*: the image is what a generator draws, and the search goes through its stages (GIFD, Fang et al., 2023).

First over latents, brought back to the length they started with; then, for one stage after another, over the features
that enter it, within an ℓ1 ball around where the last search ended. Every stage starts from the best of the one before;
the stage whose image matches best is the result, which for 0 is the latent's own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...errors import InputError
from ...models.generator import check_generator, condition_of, dtype_of, frozen_copy, generate_from
from .search import Candidates, SearchProblem, Values, Variable

# Of a ball, in the mean absolute change of a feature: the size of features is the generator's own.
_FIRST_RADIUS, _MORE = 0.25, 0.1


def invert_through(problem: SearchProblem, *, stages: int | None = None, rate: float = 0.05) -> Candidates:
    """An image for every target and restart, by the first `stages` feature maps after the latent (all by default) of
    the generator that the threats hold.

    Each stage has the search's iterations. Steps go by the gradient itself at `rate`, in units of a feature's mean
    absolute value.
    """
    if problem.threats[0].generator is None:
        raise InputError("the generative attack needs a generator; train one with `warp train-prior`")
    n, r, count = problem.shape
    generator = frozen_copy(problem.threats[0].generator)
    check_generator(generator, shape=problem.pixels.shape, device=problem.labels.device)
    last = len(generator.stages) - 1
    if stages is not None and not 0 <= stages <= last:
        raise InputError(f"{stages} feature maps are asked for and the generator has {last}; give 0 to {last}")
    labels = problem.labels.reshape(-1) if generator.classes is not None else None
    latents = problem.draws("latent", count, *generator.latent).to(dtype_of(generator))
    condition = condition_of(generator, latents.flatten(0, 1), labels)

    def images_of(features: Tensor, stage: int) -> Tensor:
        drawn = generate_from(generator, features.flatten(0, 1), stage, condition=condition)
        return drawn.to(problem.threats[0].dtype).reshape(n * r, count, *problem.pixels.shape)

    def loss_of(stage: int) -> Callable[[Values], Tensor]:
        def loss(values: Values) -> Tensor:
            images = images_of(values["features"], stage)
            return problem.matching(images) + problem.search.smoothness(images)

        return loss

    variable = Variable(latents, rate, project=_same_length(latents))
    found = problem.minimise({"features": variable}, loss_of(0))
    images, losses = _distance(problem, images_of(found.values["features"], 0), found.losses)
    for stage in range(1, 1 + (last if stages is None else stages)):
        with torch.no_grad():
            module, inside = generator.stages[stage - 1], found.values["features"].flatten(0, 1)
            inside = module(inside) if condition is None else module(inside, condition)
            features = inside.reshape(n * r, count, *inside.shape[1:])
            size = features.abs().flatten(1).mean(1)
        ball = _ball(features, radius=(_FIRST_RADIUS + _MORE * (stage - 1)) * size)
        found = problem.minimise({"features": Variable(features, rate * size, project=ball)}, loss_of(stage))
        more, least = _distance(problem, images_of(found.values["features"], stage), found.losses)
        images = torch.where((least < losses).reshape(-1, *[1] * (images.dim() - 1)), more, images)
        losses = torch.minimum(least, losses)
    return problem.candidates(images, losses)


def onto_ball(rows: Tensor, radius: float | Tensor) -> Tensor:
    """The nearest point of the ℓ1 ball of `radius`, which may be (..., 1), to each row (..., d): soft thresholding by
    the number that makes its length the radius, found from the sorted entries (Duchi et al., 2008).
    """
    size = rows.abs()
    ordered = size.sort(dim=-1, descending=True).values
    steps = torch.arange(1, rows.shape[-1] + 1, device=rows.device, dtype=rows.dtype)
    levels = (ordered.cumsum(-1) - radius) / steps
    count = (ordered > levels).sum(-1, keepdim=True).clamp(min=1)
    level = levels.gather(-1, count - 1).clamp(min=0)
    shrunk = rows.sign() * (size - level).clamp(min=0)
    return torch.where(size.sum(-1, keepdim=True) <= radius, rows, shrunk)


@torch.no_grad()
def _distance(problem: SearchProblem, images: Tensor, losses: Tensor) -> tuple[Tensor, Tensor]:
    """The images, and their losses without the prior."""
    return images.detach(), losses - problem.search.smoothness(images)


def _same_length(start: Tensor) -> Callable[[Tensor], Tensor]:
    """Back to the lengths of the latents (b, count, ...) at the start."""
    lengths = start.flatten(2).norm(dim=2)

    def project(value: Tensor) -> Tensor:
        now: Tensor = value.flatten(2).norm(dim=2).clamp(min=1e-12)
        factor: Tensor = (lengths / now).reshape(*now.shape, *[1] * (value.dim() - 2))
        return value * factor

    return project


def _ball(centre: Tensor, *, radius: Tensor) -> Callable[[Tensor], Tensor]:
    """Into the ℓ1 ball around `centre` (b, count, ...) whose radius is so much for each number, (b,)."""

    def project(value: Tensor) -> Tensor:
        offset = (value - centre).flatten(2)
        return centre + onto_ball(offset, radius[:, None, None] * offset.shape[2]).reshape(value.shape)

    return project
