"""What an attacker shows who read nothing: the smoothest image that the steps of a search lead to, or what a generator
draws at first.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...models.generator import dtype_of, frozen_copy, generate
from ...randomness import Streams
from .attacks import find_attack
from .descent import descend
from .problem import Search, first_images, smoothness
from .threat import Threat


def prior_alone(threats: Sequence[Threat], *, attack: str, search: Search, seed: int = 0) -> Tensor:
    """Images (n, count, channels, height, width): for a search over pixels the smoothest that its steps lead to from
    the first start of each target; for one through a generator what that draws at the first latents.
    """
    first, streams = threats[0], Streams(seed, "reconstruct")
    kind = next(first.original.parameters())
    shape = (first.count, *first.pixels.shape)
    if find_attack(attack).space == "generator" and first.generator is not None:
        return _drawn(threats, streams, kind)
    start = first_images(_draws(threats, streams, "image", shape, kind))
    if search.tv == 0:
        return start
    variable = search.image_variable(start)
    found = descend({"image": variable}, lambda v: smoothness(v["image"], search), iterations=search.iterations)
    return found.values["image"]


def _drawn(threats: Sequence[Threat], streams: Streams, kind: Tensor) -> Tensor:
    generator, count = threats[0].generator, threats[0].count
    assert generator is not None
    generator = frozen_copy(generator)
    latents = _draws(threats, streams, "latent", (count, *generator.latent), kind).flatten(0, 1).to(dtype_of(generator))
    labels = None
    if generator.classes is not None:
        known = [t.labels for t in threats if t.labels is not None]
        labels = torch.cat(known).to(kind.device) if known else torch.arange(len(latents), device=kind.device)
        labels = labels % generator.classes
    with torch.no_grad():
        return (
            generate(generator, latents, labels).to(kind.dtype).reshape(len(threats), count, *threats[0].pixels.shape)
        )


def _draws(threats: Sequence[Threat], streams: Streams, what: str, shape: tuple[int, ...], kind: Tensor) -> Tensor:
    rows = [torch.randn(*shape, generator=streams.generator(what, i, 0)) for i in range(len(threats))]
    return torch.stack(rows).to(kind.detach())
