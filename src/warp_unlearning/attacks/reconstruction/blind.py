"""Attacks that saw nothing of the two models: what they reach is no leak.

A mean image has a small error to every image of its class: for a class of pixel variance v its MSE is v on average, the
least of all guesses that do not depend on the target. An attack must do better than that, not better than noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import InputError
from .image_metrics import check_images


@dataclass(frozen=True, eq=False)
class BlindGuess:
    """One image a target, (n, channels, height, width), of an attack without sight; `note` says what it fell back on,
    and is empty where it did not.
    """

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
    return BlindGuess("class mean", images.to(probe_images.dtype), _note(wanted[~known]))


def overall_mean(probe_images: Tensor, *, count: int) -> BlindGuess:
    """The mean of all probe images, `count` times: for attackers who do not know the label."""
    check_images(probe_images, what="the probe images")
    if count < 1:
        raise InputError(f"there are {count} targets; give at least 1")
    mean = probe_images.detach().double().mean(0).to(probe_images.dtype)
    return BlindGuess("overall mean", mean.expand(count, *mean.shape))


def _note(missing: Tensor) -> str:
    if not len(missing):
        return ""
    names = ", ".join(str(label) for label in sorted(set(missing.tolist())))
    return f"no probe image of class {names}: the mean of all probe images stands in for it ({len(missing)} targets)"


def _check_labels(labels: Tensor, *, what: str) -> None:
    if labels.dim() != 1 or not len(labels) or labels.is_floating_point() or labels.is_complex():
        raise InputError(
            f"the labels of {what} are {labels.dtype} of shape {tuple(labels.shape)}; give integers of shape (n,)"
        )
