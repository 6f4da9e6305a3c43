"""γr and β − γrμ of all batch norms of a model, found as one tensor each in a handful of steps.

A layer is given its parts of them as views, so the backward passes too take the steps to γ and β once for all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn

from ...modules import tensor_of
from .rule import Passing

# Where a layer keeps its place among those it is taken with.
_PLACE = "_place_among_batch_norms"

ScaleAndShift = tuple[Tensor, Tensor]


def can_join(norm: nn.BatchNorm2d) -> bool:
    """Whether the scale is known before the layer is called: it is a parameter, and no hook may give another."""
    return "weight" in norm._parameters and "bias" in norm._parameters and not norm._forward_pre_hooks


def join(norms: Sequence[nn.BatchNorm2d]) -> None:
    """Let these layers, which have running statistics and can be joined, be taken together where they are alike."""
    alike: dict[tuple[torch.device, torch.dtype], list[nn.BatchNorm2d]] = {}
    for norm in norms:
        weight = cast(Tensor, tensor_of(norm, "weight"))
        alike.setdefault((weight.device, weight.dtype), []).append(norm)
    for some in alike.values():
        joint = JointNorms(some)
        for place, norm in enumerate(some):
            vars(norm)[_PLACE] = joint, place


def place_of(norm: nn.BatchNorm2d) -> tuple[JointNorms, int] | None:
    """What the layer was joined to, and its place there; None where it was not, or has been written over since."""
    known: tuple[JointNorms, int] | None = vars(norm).get(_PLACE)
    return known if known is not None and known[0].is_current(known[1]) else None


class JointNorms:
    """Batch norms in eval mode, with the channels of all in one row.

    Of the layers it keeps the tensors alone: they refer to it, and circles keep memory until they are found.
    """

    def __init__(self, norms: Sequence[nn.BatchNorm2d]) -> None:
        self._weights = [cast(Tensor, tensor_of(norm, "weight")) for norm in norms]
        self._biases = [tensor_of(norm, "bias") for norm in norms]
        self._means = [cast(Tensor, tensor_of(norm, "running_mean")) for norm in norms]
        self._variances = [cast(Tensor, tensor_of(norm, "running_var")) for norm in norms]
        self._eps = [norm.eps for norm in norms]
        self._sizes = [weight.shape[0] for weight in self._weights]
        self._parts: dict[int, list[ScaleAndShift]] = {}
        held = zip(self._weights, self._biases, self._means, self._variances, strict=True)
        self._held = [[(tensor, tensor._version) for tensor in some if tensor is not None] for some in held]

    def is_current(self, place: int) -> bool:
        """Whether the numbers of a layer are those it had when it was joined."""
        # Asked several times for every layer: a loop ends before a list of versions is made.
        for tensor, version in self._held[place]:  # noqa: SIM110
            if tensor._version != version:
                return False
        return True

    def scale_and_shift(self, place: int, axes: int, passing: Passing) -> ScaleAndShift:
        """γr and β − γrμ of one layer, shapes (1, channels, 1, ...) with `axes` ones at the end: sums over other axes,
        which their derivatives are, have as many without another step.
        """
        if axes not in self._parts:
            if not self._parts:
                self._joint = self._found(passing)
            shape = (1, -1, *[1] * axes)
            scales, shifts = (torch.split_with_sizes(joint.reshape(shape), self._sizes, 1) for joint in self._joint)
            self._parts[axes] = list(zip(scales, shifts, strict=True))
        return self._parts[axes][place]

    def r(self, place: int) -> Tensor:
        """1/√(σ² + ε) of one layer, shape (channels,)."""
        return self._r_of_each[place]

    @cached_property
    def _r(self) -> Tensor:
        if len(set(self._eps)) == 1:
            return torch.cat(self._variances).add_(self._eps[0]).rsqrt_()
        return torch.cat(torch._foreach_add(self._variances, self._eps)).rsqrt_()

    @cached_property
    def _r_of_each(self) -> Sequence[Tensor]:
        return torch.split_with_sizes(self._r, self._sizes)

    def _found(self, passing: Passing) -> ScaleAndShift:
        """γr and β − γrμ of all, shape (channels,), whose first steps are noted as those that hand over parameters."""
        weight = torch.cat([passing.weight(weight) for weight in self._weights])
        # Nothing is added where a layer has no bias.
        pairs = zip(self._biases, self._weights, strict=True)
        biases = [torch.zeros_like(its.detach()) if bias is None else passing.weight(bias) for bias, its in pairs]
        bias = torch.cat(biases)
        passing.handing.update(node for node in (weight.grad_fn, bias.grad_fn) if node is not None)
        scale = weight * self._r
        return scale, torch.addcmul(bias, torch.cat(self._means), scale, value=-1)
