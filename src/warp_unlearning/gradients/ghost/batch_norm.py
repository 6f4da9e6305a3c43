"""BatchNorm by running statistics: x̂ = (a − μ)r with r = 1/√(σ² + ε)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...modules import tensor_of
from .affine import AffineRule
from .affine_norms import AffineUse, affine_entry
from .batch_norm_twice import normalised_twice
from .batch_statistics import has_statistics, note_statistics, statistics_of
from .joint_norms import JointNorms, ScaleAndShift, can_join, join, place_of
from .rule import Part, Passing, register
from .scaled_images import are_large, scaled_images
from .summand import Entry


@register(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
class BatchNormRule(AffineRule):
    """Scale and shift of batch norm in eval mode, inputs (batch, channels, ...)."""

    def prepare(self, layers: Sequence[nn.Module]) -> None:
        """Their statistics, and where steps are better few than small, what they are taken with."""
        joined: list[nn.BatchNorm2d] = []
        others: list[nn.BatchNorm2d] = []
        for norm in cast("Sequence[nn.BatchNorm2d]", layers):
            if has_statistics(norm):
                (joined if can_join(norm) and few_steps(_weight(norm).device) else others).append(norm)
        join(joined)
        note_statistics(others)

    def hands_over(self, layer: nn.Module, a: Tensor) -> bool:
        """Where it was joined to others, whose first steps are noted."""
        return place_of(cast(nn.BatchNorm2d, layer)) is not None

    def output(self, layer: nn.Module, forward: Callable[[Tensor], Tensor], a: Tensor, passing: Passing) -> Tensor:
        """By a batch norm that is cheaper to differentiate twice than torch's."""
        norm = cast(nn.BatchNorm2d, layer)
        if not has_statistics(norm):
            return forward(a)
        norm._check_input_dim(a)
        if few_steps(a.device):
            scale, shift = _scale_and_shift(norm, a.dim() - 2, passing)
            return scaled_images(a, scale, shift, passing) if are_large(a) else scaled_and_shifted(a, scale, shift)
        bias = None if norm.bias is None else passing.weight(norm.bias)
        return normalised_twice(a, passing.weight(norm.weight), bias, statistics_of(norm), passing)

    def normalised(self, layer: nn.Module, a: Tensor) -> Tensor:
        """x̂, shape of a."""
        norm = cast(nn.BatchNorm2d, layer)
        return F.batch_norm(a, norm.running_mean, norm.running_var, eps=norm.eps)

    def kinship(self, layer: nn.Module, a: Tensor, g: Tensor) -> Hashable | None:
        """Layers on batches of the same length and kind, where steps are better few than small."""
        device = a.device
        return (a.shape[0], a.dtype, device) if few_steps(device) else None

    def entry(self, names: Sequence[str], parts: Sequence[Part]) -> Entry | None:
        """Of scales and shifts together."""
        return affine_entry([_affine_use(part) for part in parts], names)


def _weight(norm: nn.BatchNorm2d) -> Tensor:
    return cast(Tensor, tensor_of(norm, "weight"))


def _scale_and_shift(norm: nn.BatchNorm2d, axes: int, passing: Passing) -> ScaleAndShift:
    known = place_of(norm)
    if known is not None:
        return known[0].scale_and_shift(known[1], axes, passing)
    # Its parameters may be any tensors, so the nodes that point to them are not to be passed over.
    return JointNorms([norm]).scale_and_shift(0, axes, Passing(inputs_only=passing.inputs_only))


def _affine_use(part: Part) -> AffineUse:
    norm = cast(nn.BatchNorm2d, part.layer)
    place = place_of(norm)
    r = statistics_of(norm).r if place is None else place[0].r(place[1])
    return AffineUse(part.a, part.g, cast(Tensor, tensor_of(norm, "running_mean")), r)


def few_steps(device: torch.device) -> bool:
    """Whether steps cost more to begin than to do, so that several layers are taken in one."""
    return device.type != "cpu"


def scaled_and_shifted(a: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """γra + (β − γrμ) in operations of torch's own, whose derivatives are begun without an interpreter.

    It is as exact as a is: what a − μ loses, a has lost when it was rounded.
    """
    # Not by `addcmul`, whose derivatives first multiply a and the scale by 1.
    return (a * scale).add_(shift)
