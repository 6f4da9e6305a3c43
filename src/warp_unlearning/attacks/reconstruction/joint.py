"""*joint*: the image and the factors of the channels fitted together.

A step taken in a basis with the factors τ is, in the original's coordinates, g_ij τ_j² / τ_i² for the weights from
channel j to channel i. With x_c = −2 log τ_c for every free channel, minimises over image and x the distance of
g exp(Σ_c p_c x_c) from the difference, with the pull of a normal prior of standard deviation 2·`spread` on x. Where the
channels cannot be traced there are no factors to fit, which is an error.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import vmap

from ...errors import InputError
from ..undo.base import Held
from ..undo.channels import Channels, all_pinned, channels_of, rescaled
from .descent import Values, Variable, descend
from .predicted import Weights
from .problem import Candidates, Problem, Search, smoothness


def invert_jointly(
    problem: Problem, search: Search, held: Held, *, spread: float = 1.0, pull: float = 1e-2, rate: float = 0.05
) -> Candidates:
    """An image for every target and restart; `rate` is that of the logarithms, and `pull` the weight of their prior."""
    if not spread > 0:
        raise InputError(f"the spread of the factors' prior is {spread}; give a number above 0")
    channels = held.once(channels_of)
    if channels.free == 0:
        raise all_pinned(held)
    image = problem.image_variable(search)
    start = image.start.new_zeros(len(image.start), channels.free)

    def loss(values: Values) -> Tensor:
        prior = pull * (values["logs"] / (2 * spread)).square().mean(1)
        matching = problem.matching(values["image"], values, lambda u, v: _with_factors(channels, u, v["logs"]))
        return matching + prior + smoothness(values["image"], search)

    found = descend(
        {"image": image, "logs": Variable(start, rate)}, loss, iterations=search.iterations, watch=problem.watch
    )
    with torch.no_grad():
        losses = problem.matching(
            found.values["image"], found.values, lambda u, v: _with_factors(channels, u, v["logs"])
        )
    return problem.candidates(found.values["image"], losses)


def _with_factors(channels: Channels, updates: Weights, logs: Tensor) -> Weights:
    """Updates (b, *parameter) times the factors exp(±logs), (b, free), of the channels they stand in."""
    found: Weights = vmap(lambda u, x: rescaled(channels, u, channels.embedded(x)))(updates, logs)
    return found
