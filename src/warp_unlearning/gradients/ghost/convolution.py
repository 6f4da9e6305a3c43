"""Conv1d and Conv2d: with patches p and positions t, ∂ℓ/∂W = Σₜ gₜ pₜᵀ in each group and ∂ℓ/∂b = Σₜ gₜ.

A Conv1d is a Conv2d of height 1.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...modules import tensor_of
from .geometry import Geometry, image, plane
from .joint_kernels import Pair, join_kernels, kernel_with_channels_last, kernels_with_history
from .kernel_alignment import kernel_alignments
from .kernel_gradient import kernel_gradients
from .kernel_norm import better_together, kernel_entry
from .rule import GhostRule, Part, Passing, register
from .summand import Entry, summed
from .transposed import convolved_by_transposing, suits_transposing
from .twice import convolved


@register(nn.Conv1d, nn.Conv2d)
class ConvolutionRule(GhostRule):
    """Kernel and bias of a convolution, inputs (batch, channels, ...)."""

    def prepare(self, layers: Sequence[nn.Module]) -> None:
        """Their kernels in another layout, if any will need it."""
        join_kernels([layer for layer in layers if isinstance(layer, nn.Conv2d)])

    def hands_over(self, layer: nn.Module, a: Tensor) -> bool:
        """A plain kernel, unless the input too is a parameter."""
        own = "weight" in layer._parameters
        plain = own and a.dim() == 4 == _weight(layer).dim() and tensor_of(layer, "bias") is None
        return plain and (a.grad_fn is not None or not a.requires_grad)

    def output(self, layer: nn.Module, forward: Callable[[Tensor], Tensor], a: Tensor, passing: Passing) -> Tensor:
        """By the convolution that is cheaper to differentiate twice."""
        convolution = cast(nn.Conv2d, layer)
        weight = _weight(layer)
        if a.dim() != weight.dim():
            return forward(a)
        images, geometry = plane(convolution, a)
        kernel = image(passing.weight(weight))
        laid_out = _laid_out(convolution, kernel, images, passing) if suits_transposing(a.device, geometry) else None
        if laid_out is None:
            found = convolved(images, kernel, geometry, passing, partial(kernel_with_channels_last, convolution))
        else:
            found = convolved_by_transposing(images, laid_out[0], geometry, passing, laid_out[1])
        found = found.squeeze(2) if a.dim() == 3 else found
        bias = tensor_of(layer, "bias")
        return found if bias is None else found + bias.reshape(-1, *[1] * (a.dim() - 2))

    def gradient(self, layer: nn.Module, name: str, a: Tensor, g: Tensor) -> Tensor:
        """(batch, *kernel) or (batch, channels out)."""
        if name == "bias":
            return g.reshape(*g.shape[:2], -1).sum(-1)
        convolution = cast(nn.Conv2d, layer)
        a, geometry = plane(convolution, a)
        if a.is_cuda:
            found = kernel_gradients(a, image(g), geometry)
        else:
            p, g = _rows(a, image(g), geometry)
            found = g.mT @ p
        return found.reshape(len(a), *convolution.weight.shape)

    def alignment(self, layer: nn.Module, name: str, a: Tensor, g: Tensor, direction: Tensor) -> Tensor:
        """The kernel's without its gradient."""
        if name == "bias":
            return super().alignment(layer, name, a, g, direction)
        images, geometry = plane(cast(nn.Conv2d, layer), a)
        kernels = direction.reshape(len(a), geometry.out, geometry.width, *geometry.size)
        return kernel_alignments(images, image(g), kernels, geometry)

    def kinship(self, layer: nn.Module, a: Tensor, g: Tensor) -> Hashable | None:
        """Layers of the same geometry on inputs of the same shape, where steps are small."""
        convolution = cast(nn.Conv2d, layer)
        if convolution.padding_mode != "zeros" or isinstance(convolution.padding, str):
            return None
        images, geometry = plane(convolution, a)
        return (geometry, a.shape, g.shape) if better_together(images, image(g), geometry) else None

    def squared_norm(self, layer: nn.Module, name: str, a: Tensor, g: Tensor) -> Tensor:
        """The kernel's by the cheapest contraction."""
        if name == "bias":
            return super().squared_norm(layer, name, a, g)
        a, geometry = plane(cast(nn.Conv2d, layer), a)
        return summed([kernel_entry([a], [image(g)], geometry)])

    def entry(self, names: Sequence[str], parts: Sequence[Part]) -> Entry | None:
        """Those of the kernels, where they are all, in one contraction."""
        if list(names) != ["weight"]:
            return None
        planes = [plane(cast(nn.Conv2d, part.layer), part.a) for part in parts]
        return kernel_entry([images for images, _ in planes], [image(part.g) for part in parts], planes[0][1])

    def squared_norms(self, names: Sequence[str], parts: Sequence[Part]) -> Tensor:
        """Those of the kernels in one contraction."""
        of_kernels = self.entry(["weight"], parts) if "weight" in names else None
        others = [name for name in names if name != "weight"]
        if of_kernels is None or not others:
            return super().squared_norms(names, parts)
        return summed([of_kernels]) + super().squared_norms(others, parts)


def _weight(layer: nn.Module) -> Tensor:
    return cast(Tensor, tensor_of(layer, "weight"))


def _laid_out(convolution: nn.Conv2d, kernel: Tensor, images: Tensor, passing: Passing) -> Pair | None:
    """The kernel, with its history, in the layout of the images, for the layer and for its derivative; None where it is
    to be copied for this layer alone.
    """
    if not images.is_contiguous(memory_format=torch.channels_last):
        return kernel, kernel
    # Images of one pixel have either layout.
    either = images.is_contiguous()
    found = kernels_with_history(convolution, not either, passing)
    return (kernel, kernel) if found is None and either else found


def _rows(a: Tensor, g: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """Patches (batch·groups, T, patch) and output gradients (batch·groups, T, out / groups)."""
    columns = F.unfold(a, geometry.size, stride=geometry.stride, padding=geometry.padding, dilation=geometry.dilation)
    count = len(a) * geometry.groups
    p = columns.reshape(count, geometry.patch, -1)
    return p.mT, g.reshape(count, geometry.out // geometry.groups, -1).mT
