"""nᵢ = ‖∂ℓᵢ/∂W‖² of a convolution's kernel, by the contraction that suits the device and the shapes.

On a CPU by steps small enough for its caches, of which nothing is kept for the backward pass but a and G; on a GPU by
few large ones, which keep what they have computed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .geometry import Geometry, without_idle_taps
from .gram import Gram
from .grouped import Grouped
from .grouped_last import GroupedLast
from .kernel_contraction import KernelContraction, Size
from .one_position import OnePosition
from .patches import Patches
from .precision import convolutions_round, precision_of_convolutions
from .windowed_gram import WindowedGram

_GRAM, _GROUPED, _ONE_POSITION = Gram(), Grouped(), OnePosition()
_WINDOWED_GRAM, _GROUPED_LAST, _PATCHES = WindowedGram(), GroupedLast(), Patches()


def kernel_norms(a: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
    """nᵢ for images a (batch, channels, height, width), shape (batch,), differentiable once in a and g."""
    groups = geometry.groups
    if groups > 1:
        a, g = (x.reshape(x.shape[0] * groups, -1, *x.shape[2:]) for x in (a, g))
    norms = cast(Tensor, _KernelNorm.apply(a, g, geometry))  # type: ignore[no-untyped-call]
    return norms if groups == 1 else norms.reshape(-1, groups).sum(1)


def better_together(a: Tensor, g: Tensor, geometry: Geometry) -> bool:
    """Whether the norms of several layers like this one are found faster if their images are concatenated."""
    outputs = (g.shape[2], g.shape[3])
    inputs = outputs if _steps_over(geometry) else (a.shape[2], a.shape[3])
    return contraction_for(a.device, a.dtype, inputs, outputs, _simplified(geometry, inputs, outputs)).together


def contraction_for(
    device: torch.device, dtype: torch.dtype, inputs: Size, outputs: Size, geometry: Geometry
) -> KernelContraction:
    """The fastest for a layer of one group whose images have these heights and widths."""
    if device.type == "cpu":
        return _fastest((_GRAM, _GROUPED), inputs, outputs, geometry)
    other = _GROUPED_LAST if _convolves_groups(dtype, geometry) else _PATCHES
    return _fastest((_WINDOWED_GRAM, other), inputs, outputs, geometry)


@lru_cache(maxsize=256)
def _fastest(ways: tuple[KernelContraction, ...], inputs: Size, outputs: Size, geometry: Geometry) -> KernelContraction:
    if _ONE_POSITION.suits(inputs, outputs, geometry):
        return _ONE_POSITION
    return min(ways, key=lambda way: way.cost(inputs, outputs, geometry))


def _convolves_groups(dtype: torch.dtype, geometry: Geometry) -> bool:
    """Whether a GPU has fast convolutions of groups: in TF32, for channels in fours and a stride of 1.

    A single tap is a plain product.
    """
    plain = geometry.stride == (1, 1) and geometry.size != (1, 1)
    in_fours = geometry.width % 4 == 0 and geometry.out % 4 == 0
    return plain and in_fours and dtype == torch.float32 and convolutions_round()


def _steps_over(geometry: Geometry) -> bool:
    """Whether a kernel of one tap steps over inputs, which are then left out."""
    return geometry.size == (1, 1) and geometry.padding == (0, 0) and geometry.stride != (1, 1)


@lru_cache(maxsize=256)
def _simplified(geometry: Geometry, inputs: Size, outputs: Size) -> Geometry:
    """The geometry of a single group, of the inputs that are not left out, and of the taps that see any."""
    if geometry.groups > 1:
        geometry = replace(geometry, out=geometry.out // geometry.groups, groups=1)
    if _steps_over(geometry):
        return replace(geometry, stride=(1, 1))
    return without_idle_taps(geometry, inputs, outputs)


def images_at_once(count: int, numbers: int, chunk: int) -> int:
    """How many of `count` images are worked on together: shares as equal as they can be, of at most `chunk` numbers."""
    pieces = -(-count * numbers // chunk)
    return -(-count // min(pieces, count))


def _taken(a: Tensor, stride: Size) -> Tensor:
    """Every so many rows and columns."""
    return a[:, :, :: stride[0], :: stride[1]]


class _KernelNorm(torch.autograd.Function):
    """For a of one group each; the geometry still has all groups, and the inputs that it steps over."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
        whole, ctx.stride = a, geometry.stride if _steps_over(geometry) else None
        a = a if ctx.stride is None else _taken(a, ctx.stride).clone()
        inputs, outputs = (a.shape[2], a.shape[3]), (g.shape[2], g.shape[3])
        geometry = _simplified(geometry, inputs, outputs)
        way = contraction_for(a.device, a.dtype, inputs, outputs, geometry)
        some = images_at_once(a.shape[0], way.numbers(inputs, outputs, geometry), way.chunk)
        wants_a, wants_g = ctx.needs_input_grad[:2]
        with precision_of_convolutions():
            # A whole is not cut: that would be two operations.
            parts = [slice(i, i + some) for i in range(0, a.shape[0], some)]
            pairs = [(a[part], g[part]) for part in parts] if len(parts) > 1 else [(a, g)]
            found = [way.norms(x, y, geometry, wants_a=wants_a, wants_g=wants_g) for x, y in pairs]
        ctx.save_for_backward(a, g, whole)
        ctx.way, ctx.geometry, ctx.some = way, geometry, some
        ctx.kept = [kept for _, kept in found]
        return found[0][0] if len(found) == 1 else torch.cat([norms for norms, _ in found])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor, None]:
        with precision_of_convolutions():
            for_a, for_g = _pullbacks(ctx, upstream)
        if for_a is not None and ctx.stride is not None:
            # In the layout of the input, which what comes from elsewhere has too.
            taken, for_a = for_a, torch.zeros_like(ctx.saved_tensors[2])
            _taken(for_a, ctx.stride).copy_(taken)
        return for_a, for_g, None


def _pullbacks(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor]:
    """At the inputs that are not stepped over, where wanted, and at g."""
    a, g, _ = ctx.saved_tensors
    wants_a = ctx.needs_input_grad[0]
    if len(ctx.kept) == 1:
        return cast(
            "tuple[Tensor | None, Tensor]",
            ctx.way.pullbacks(a, g, ctx.kept[0], upstream, ctx.geometry, wants_a=wants_a),
        )
    for_a, for_g = torch.empty_like(a) if wants_a else None, torch.empty_like(g)
    for index, kept in enumerate(ctx.kept):
        part = slice(index * ctx.some, (index + 1) * ctx.some)
        of_a, for_g[part] = ctx.way.pullbacks(a[part], g[part], kept, upstream[part], ctx.geometry, wants_a=wants_a)
        if for_a is not None:
            for_a[part] = of_a
    return for_a, for_g
