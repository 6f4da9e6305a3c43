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
from ...models.generator import Staged, check_generator, condition_of, dtype_of, frozen_copy, generate_from
from .descent import Values, Variable, descend
from .problem import Candidates, Problem, Search, smoothness

# Of a ball, in the mean absolute change of a feature: the size of features is the generator's own.
_FIRST_RADIUS, _MORE = 0.25, 0.1


def invert_through(
    problem: Problem, search: Search, generator: Staged, *, stages: int | None = None, rate: float = 0.05
) -> Candidates:
    """An image for every target and restart, by the first `stages` feature maps after the latent (all by default).

    Each stage has the search's iterations. Steps go by the gradient itself at `rate`, in units of a feature's mean
    absolute value.
    """
    n, r, count = problem.shape
    generator = frozen_copy(generator)
    check_generator(generator, shape=problem.pixels.shape, device=problem.labels.device)
    last = len(generator.stages) - 1
    if stages is not None and not 0 <= stages <= last:
        raise InputError(f"{stages} feature maps are asked for and the generator has {last}; give 0 to {last}")
    labels = problem.labels.reshape(-1) if generator.classes is not None else None
    kind, own = next(iter(problem.targets.values.values())).dtype, dtype_of(generator)
    latents = problem.draws("latent", count, *generator.latent).to(own)
    flat = latents.flatten(0, 1)
    condition = condition_of(generator, flat, labels)
    best: Values = {}
    features, project, speed = latents, _same_length(latents), latents.new_full((len(latents),), rate)
    for stage in range((last if stages is None else stages) + 1):

        def images_of(values: Tensor, stage: int = stage) -> Tensor:
            drawn = generate_from(generator, values.flatten(0, 1), stage, condition=condition)
            return drawn.to(kind).reshape(n * r, count, *problem.pixels.shape)

        def loss(values: Values, images_of: Callable[[Tensor], Tensor] = images_of) -> Tensor:
            images = images_of(values["features"])
            return problem.matching(images, values) + smoothness(images, search)

        found = descend(
            {"features": Variable(features, speed, project=project)},
            loss,
            iterations=search.iterations,
            watch=problem.watch,
        )
        with torch.no_grad():
            at = found.values["features"]
            images = images_of(at)
            best = _better(best, images, found.losses - smoothness(images, search))
            if stage < last:
                entered = generator.stages[stage]
                inside = at.flatten(0, 1)
                inside = entered(inside) if condition is None else entered(inside, condition)
                features = inside.reshape(n * r, count, *inside.shape[1:])
                size = features.abs().flatten(1).mean(1)
                project = _ball(features, radius=(_FIRST_RADIUS + _MORE * stage) * size)
                speed = rate * size
    return problem.candidates(best["images"], best["losses"])


def _better(best: Values, images: Tensor, losses: Tensor) -> Values:
    if not best:
        return {"images": images, "losses": losses}
    mask = losses < best["losses"]
    kept = torch.where(mask.reshape(-1, *[1] * (images.dim() - 1)), images, best["images"])
    return {"images": kept, "losses": torch.minimum(losses, best["losses"])}


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
