"""Attacks that saw nothing of the two models: what they reach is no leak.

A mean image has a small error to every image of its class: for a class of pixel variance v its MSE is v on average, the
least of all guesses that do not depend on the target. An attack must do better than that, not better than noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import InputError
from ...models.generator import Staged, dtype_of, frozen_copy, generate
from ...randomness import Streams
from .attacks import find_attack
from .generative import invert_through
from .metrics import check_images
from .search import Search, descend, drawn
from .threat import Threat


@dataclass(frozen=True, eq=False)
class BlindGuess:
    """One image a target, (n, channels, height, width); `note` says what it fell back on, or is empty."""

    name: str
    images: Tensor
    note: str = ""


def class_means(probe_images: Tensor, probe_labels: Tensor, labels: Tensor) -> BlindGuess:
    """For each of `labels`, (n,), the mean of the probe images of that class; of all probe images where the class has
    none, which the note then says.
    """
    check_images(probe_images, what="the probe images")
    if probe_labels.shape != (len(probe_images),):
        raise InputError(
            f"{len(probe_images)} probe images have labels of shape {tuple(probe_labels.shape)}; give one label each"
        )
    _check_labels(probe_labels, what="the probe images")
    _check_labels(labels, what="the targets")
    classes, place = torch.unique(probe_labels.to(probe_images.device), return_inverse=True)
    # In float64, since a sum over many images in float32 loses digits that a small error is made of.
    sums = torch.zeros(len(classes), *probe_images.shape[1:], dtype=torch.float64, device=probe_images.device)
    sums.index_add_(0, place, probe_images.detach().double())
    means = sums / torch.bincount(place, minlength=len(classes))[:, None, None, None]
    wanted = labels.to(probe_images.device)
    hits = wanted[:, None] == classes
    known = hits.any(1)
    overall = probe_images.detach().double().mean(0)
    images = torch.where(known[:, None, None, None], means[hits.int().argmax(1)], overall)
    missing, note = wanted[~known], ""
    if len(missing):
        names = ", ".join(str(label) for label in sorted(set(missing.tolist())))
        note = (
            f"no probe image of class {names}: the mean of all probe images stands in for it ({len(missing)} targets)"
        )
    return BlindGuess("class mean", images.to(probe_images.dtype), note)


def overall_mean(probe_images: Tensor, *, count: int) -> BlindGuess:
    """The mean of all probe images, `count` times: for attackers who do not know the label."""
    check_images(probe_images, what="the probe images")
    if count < 1:
        raise InputError(f"there are {count} targets; give at least 1")
    mean = probe_images.detach().double().mean(0).to(probe_images.dtype)
    return BlindGuess("overall mean", mean.expand(count, *mean.shape))


def prior_alone(threats: Sequence[Threat], *, attack: str, search: Search, seed: int = 0) -> Tensor:
    """The images (n, count, channels, height, width) of a search that has nothing to match: over pixels the smoothest
    that its steps lead to from the first start of each target; through a generator what that draws at the first
    latents.
    """
    first, streams, places = threats[0], Streams(seed, "reconstruct"), [(i, 0) for i in range(len(threats))]
    if find_attack(attack).run is invert_through and first.generator is not None:
        latents = drawn(streams, "latent", places, (first.count, *first.generator.latent))
        return _generated(first.generator, threats, latents.to(first.device, first.dtype).flatten(0, 1))
    draws = drawn(streams, "image", places, (first.count, *first.pixels.shape)).to(first.device, first.dtype)
    variable = search.image_variable(draws)
    if search.tv == 0:
        return variable.start
    found = descend({"image": variable}, lambda v: search.smoothness(v["image"]), iterations=search.iterations)
    return found.values["image"]


def _generated(generator: Staged, threats: Sequence[Threat], latents: Tensor) -> Tensor:
    first, labels = threats[0], None
    if generator.classes is not None:
        known = [t.labels for t in threats if t.labels is not None]
        labels = torch.cat(known).to(first.device) if known else torch.arange(len(latents), device=first.device)
        labels = labels % generator.classes
    with torch.no_grad():
        images = generate(frozen_copy(generator), latents.to(dtype_of(generator)), labels)
    return images.to(first.dtype).reshape(len(threats), first.count, *first.pixels.shape)


def _check_labels(labels: Tensor, *, what: str) -> None:
    if labels.dim() != 1 or not len(labels) or labels.is_floating_point() or labels.is_complex():
        raise InputError(
            f"the labels of {what} are {labels.dtype} of shape {tuple(labels.shape)}; give integers of shape (n,)"
        )
