"""The attacks by name: how each reads the difference, what it searches over, and what it must hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ...errors import InputError, nearest
from .matching import Distance

Space = Literal["pixels", "generator", "factors", "weights"]


@dataclass(frozen=True)
class Attack:
    """`after` is how the difference is read, `space` what is searched beside or instead of pixels: a generator's
    features, channel factors of the update, or channel factors of the weights. `unrolled` predicts all steps of a known
    schedule, the others one.
    """

    name: str
    about: str
    after: str = "naive"
    distance: Distance = "cosine"
    space: Space = "pixels"
    unrolled: bool = False


_ATTACKS: Mapping[str, Attack] = {
    attack.name: attack
    for attack in (
        Attack("differencing", "the image whose step is nearest to the difference, no prior", distance="euclidean"),
        Attack("inversion", "the image whose gradient points along the difference, by cosine and total variation"),
        Attack("filtered", "inversion of what the original's gradients span and the unlearned's do not", "filtered"),
        Attack("generative", "inversion through a generator, from latents on to features", space="generator"),
        Attack("adaptive", "image and change of basis fitted to the unlearned weights", space="weights"),
        Attack("canonical", "inversion after a rescaling and permutation are undone in closed form", "canonical"),
        Attack("span", "inversion of the difference projected on the layers' inputs", "span"),
        Attack("filter", "inversion of the difference shrunk to what gradients are", "filter"),
        Attack("conservation", "inversion after the factors of a moved basis are solved for", "conservation"),
        Attack("scale-free", "inversion by the directions of kernels alone", "scale-free"),
        Attack("input-layer", "the rows of the first layers alone, which may be the image itself", "input-layer"),
        Attack("joint", "image and channel factors of the update fitted together", space="factors"),
        Attack("unrolled", "the image that gives the difference by all steps of a known schedule", unrolled=True),
    )
}


def attacks() -> dict[str, str]:
    """Every attack in order, with what it does in a line."""
    return {name: attack.about for name, attack in _ATTACKS.items()}


def find_attack(name: str) -> Attack:
    """The attack of that name."""
    if name not in _ATTACKS:
        raise InputError(f"there is no attack {name!r}; {nearest(name, _ATTACKS)}")
    return _ATTACKS[name]
