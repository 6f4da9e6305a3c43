"""Conv1d and Conv2d: with patches p and positions t, ∂ℓ/∂W = Σₜ gₜ pₜᵀ in each group and ∂ℓ/∂b = Σₜ gₜ.

‖∂ℓ/∂W‖² is Σₜₜ' (pₜ·pₜ')(gₜ·gₜ') where that is cheaper, else the weight gradient Mᵢ of every example is computed, by
one convolution in which each example is a group of its own. Only a and G are kept for the backward pass, where
∂n/∂G = 2·conv(a, Mᵢ) and ∂n/∂a is 2 times the transposed convolution of G with Mᵢ. A Conv1d is a Conv2d of height 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .geometry import Geometry, image, plane
from .gram import gram_cost, gram_norms, gram_pullbacks
from .rule import GhostRule, Passing, register
from .twice import convolved

# Per-example weight gradients, or inner products, that exist at one time: 4 MiB in float32, which caches hold.
CHUNK_ELEMENTS = 2**20


@register(nn.Conv1d, nn.Conv2d)
class ConvolutionRule(GhostRule):
    """Kernel and bias of a convolution, inputs (batch, channels, ...)."""

    def output(self, layer: nn.Module, forward: Callable[[Tensor], Tensor], a: Tensor, passing: Passing) -> Tensor:
        """By the convolution that is cheaper to differentiate twice, where no bias is added to it."""
        convolution = cast(nn.Conv2d, layer)
        if convolution.bias is not None or a.dim() != convolution.weight.dim():
            return forward(a)
        images, geometry = plane(convolution, a)
        found = convolved(images, image(convolution.weight), geometry, passing)
        return found.squeeze(2) if a.dim() == 3 else found

    def gradient(self, layer: nn.Module, name: str, a: Tensor, g: Tensor) -> Tensor:
        """(batch, *kernel) or (batch, channels out)."""
        if name == "bias":
            return g.reshape(*g.shape[:2], -1).sum(-1)
        convolution = cast(nn.Conv2d, layer)
        a, geometry = plane(convolution, a)
        p, g = _rows(a, image(g), geometry)
        return (g.mT @ p).reshape(len(a), *convolution.weight.shape)

    def squared_norm(self, layer: nn.Module, name: str, a: Tensor, g: Tensor) -> Tensor:
        """The kernel's by the cheaper contraction."""
        if name == "bias":
            return super().squared_norm(layer, name, a, g)
        a, geometry = plane(cast(nn.Conv2d, layer), a)
        return cast(Tensor, _KernelNorm.apply(a, image(g), geometry))  # type: ignore[no-untyped-call]


class _KernelNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
        ctx.save_for_backward(a, g)
        ctx.geometry = geometry
        step = _chunk(a, g, geometry)
        return torch.cat([_norms(a[i : i + step], g[i : i + step], geometry) for i in range(0, len(a), step)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor, None]:
        a, g = ctx.saved_tensors
        step = _chunk(a, g, ctx.geometry)
        for_a = torch.empty_like(a) if ctx.needs_input_grad[0] else None
        for_g = torch.empty_like(g)
        for i in range(0, len(a), step):
            some = slice(i, i + step)
            part, for_g[some] = _pullbacks(a[some], g[some], upstream[some], ctx.geometry, for_a is not None)
            if for_a is not None and part is not None:
                for_a[some] = part
        return for_a, for_g, None


def _by_gram(a: Tensor, g: Tensor, geometry: Geometry) -> bool:
    inputs, outputs = a[0, 0].numel(), g[0, 0].numel()
    direct = outputs * geometry.patch * (geometry.out // geometry.groups)
    return gram_cost(inputs, outputs, geometry) <= direct


def _chunk(a: Tensor, g: Tensor, geometry: Geometry) -> int:
    """How many examples are worked on at once: shares of the batch as equal as they can be."""
    each = geometry.out * geometry.patch
    if _by_gram(a, g, geometry):
        each = geometry.groups * (a[0, 0].numel() ** 2 + g[0, 0].numel() ** 2)
    pieces = -(-len(a) * each // CHUNK_ELEMENTS)
    return -(-len(a) // min(pieces, len(a)))


def _norms(a: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
    if _by_gram(a, g, geometry):
        norms = gram_norms(_by_group(a, geometry), _by_group(g, geometry), geometry)
        return norms.reshape(len(a), -1).sum(1)
    # The norm needs no tensor of squares.
    kernels = _kernel_gradients(a, g, geometry).reshape(len(a), -1)
    lengths: Tensor = torch.linalg.vector_norm(kernels, dim=1)
    return lengths.square()


def _pullbacks(
    a: Tensor, g: Tensor, upstream: Tensor, geometry: Geometry, wants_a: bool
) -> tuple[Tensor | None, Tensor]:
    """Σᵢ upstreamᵢ nᵢ differentiated with respect to a, where wanted, and g."""
    if _by_gram(a, g, geometry):
        weights = upstream.repeat_interleave(geometry.groups)
        parts = gram_pullbacks(_by_group(a, geometry), _by_group(g, geometry), weights, geometry)
        return parts[0].reshape(a.shape), parts[1].reshape(g.shape)
    kernels = _kernel_gradients(a, g, geometry)
    kernels *= (2 * upstream).repeat_interleave(geometry.out)[:, None, None, None]
    for_g = _as_groups(a, kernels, geometry).reshape(g.shape)
    if not wants_a:
        return None, for_g
    for_a, _, _ = _convolution_backward(a, g, kernels, geometry, (True, False, False))
    return for_a.reshape(a.shape), for_g


def _by_group(x: Tensor, geometry: Geometry) -> Tensor:
    """(batch·groups, channels / groups, height, width)."""
    return x.reshape(len(x) * geometry.groups, -1, *x.shape[2:])


def _rows(a: Tensor, g: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """Patches (batch·groups, T, patch) and output gradients (batch·groups, T, out / groups)."""
    columns = F.unfold(a, geometry.size, stride=geometry.stride, padding=geometry.padding, dilation=geometry.dilation)
    count = len(a) * geometry.groups
    p = columns.reshape(count, geometry.patch, -1)
    return p.mT, g.reshape(count, geometry.out // geometry.groups, -1).mT


def _as_groups(a: Tensor, kernels: Tensor, geometry: Geometry) -> Tensor:
    """Each example convolved with its own kernel, shape (1, batch·out, ...)."""
    return F.conv2d(
        a.reshape(1, -1, *a.shape[2:]),
        kernels,
        stride=geometry.stride,
        padding=geometry.padding,
        dilation=geometry.dilation,
        groups=len(a) * geometry.groups,
    )


def _kernel_gradients(a: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
    """∂ℓᵢ/∂W of every example, shape (batch·out, in / groups, *size)."""
    # Only the shape of the kernels matters here, so they take no memory.
    kernels = a.new_empty(()).expand(len(a) * geometry.out, geometry.width, *geometry.size)
    _, found, _ = _convolution_backward(a, g, kernels, geometry, (False, True, False))
    return found


def _convolution_backward(
    a: Tensor, g: Tensor, kernels: Tensor, geometry: Geometry, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    found = torch.ops.aten.convolution_backward(
        g.reshape(1, -1, *g.shape[2:]),
        a.reshape(1, -1, *a.shape[2:]),
        kernels,
        None,
        geometry.stride,
        geometry.padding,
        geometry.dilation,
        False,
        (0, 0),
        len(a) * geometry.groups,
        wanted,
    )
    return cast("tuple[Tensor, Tensor, Tensor]", found)
