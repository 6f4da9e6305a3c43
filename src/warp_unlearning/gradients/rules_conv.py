"""The rule of Conv1d and Conv2d: with patches p and positions t, ∂ℓ/∂W = Σₜ gₜpₜᵀ in each group and ∂ℓ/∂b = Σₜ gₜ.

‖∂ℓᵢ/∂W‖² comes from the cheaper of two contractions, for a few images at a time and with nothing kept for the backward
pass:

- Inner products of positions, nᵢ = Σₜₜ' Kₜₜ'Γₜₜ', with K those of patches and Γ those of output gradients. Tap δ of the
  patch at t lies at the input position s(t, δ), so K is a sum over taps of cuts of the inner products A of input
  positions, Kₜₜ' = Σ_δ A[s(t, δ), s(t', δ)]. With S the sum of the cuts of Γ pasted back to where those of A came from,
  ∂n/∂a = 2aS and ∂n/∂G = 2GK.
- Kernel gradients, nᵢ = ‖Mᵢ‖². One convolution in which each image is a group gives all Mᵢ. For a cotangent U of M the
  derivatives are such convolutions too, ∂/∂G = a * U and ∂/∂a = G *ᵀ U. A GPU is slow with so many groups, and there
  all three are products with the patches, laid out in memory.

A Conv1d is a Conv2d of height 1. Groups count as images, and strides of 1x1 kernels leave out inputs beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .double_backward import Geometry, convolve, convolved, input_gradient, kernel_gradient
from .rules import GhostRule, Phase, outer_norm, register

# Numbers of intermediate results that exist at one time: 4 MiB in float32, which caches hold, and 1 GiB on a GPU.
_CHUNK, _CHUNK_ON_GPU = 2**20, 2**28
# What adding a cut costs for each of its numbers, in multiplications: memory is a GPU's limit there.
_CUT, _CUT_ON_GPU = 1, 40

Cut = tuple[slice, ...]


@register(nn.Conv1d, nn.Conv2d)
class ConvolutionRule(GhostRule):
    """Kernel and bias, inputs (batch, channels, ...)."""

    def output(self, layer: nn.Module, forward: Callable[[Tensor], Tensor], a: Tensor, phase: Phase) -> Tensor:
        """By a convolution that is cheap to differentiate twice."""
        convolution = cast(nn.Conv2d, layer)
        if a.dim() != convolution.weight.dim():
            return forward(a)
        images, geometry = _plane(convolution, a)
        found = convolved(images, _image(convolution.weight), geometry, phase)
        found = found.squeeze(2) if a.dim() == 3 else found
        return found if convolution.bias is None else found + convolution.bias.reshape(-1, *[1] * (a.dim() - 2))

    def gradient(self, layer: nn.Module, name: str, a: Tensor, g: Tensor) -> Tensor:
        """(batch, *kernel) or (batch, channels out)."""
        if name == "bias":
            return g.flatten(2).sum(2)
        kernel = cast(nn.Conv2d, layer).weight
        images, gradients, geometry = _single_group(layer, a, g)
        if _is_pointwise(geometry):
            return (gradients.flatten(2) @ images.flatten(2).mT).reshape(len(a), *kernel.shape)
        found = cast(Tensor, _KernelGradient.apply(images, gradients, geometry))  # type: ignore[no-untyped-call]
        return found.reshape(len(a), *kernel.shape)

    def squared_norm(self, layer: nn.Module, names: Collection[str], a: Tensor, g: Tensor) -> Tensor:
        """The kernel's by the cheaper contraction."""
        if "weight" not in names:
            return super().squared_norm(layer, names, a, g)
        images, gradients, geometry = _single_group(layer, a, g)
        if _is_pointwise(geometry):
            norms = outer_norm(images.flatten(2).mT, gradients.flatten(2).mT)
        else:
            by_positions = _positions_are_cheaper(images, gradients, geometry)
            norms = cast(Tensor, _KernelNorm.apply(images, gradients, geometry, by_positions))  # type: ignore[no-untyped-call]
        norms = norms.reshape(len(a), -1).sum(1)
        return norms + super().squared_norm(layer, ["bias"], a, g) if "bias" in names else norms

    def alignment(self, layer: nn.Module, name: str, a: Tensor, g: Tensor, direction: Tensor) -> Tensor:
        """The kernel's as Σₜ gₜ·(a * T)ₜ, without its gradient."""
        if name == "bias":
            return super().alignment(layer, name, a, g, direction)
        images, gradients, geometry = _single_group(layer, a, g)
        kernels = direction.reshape(len(images), geometry.out, geometry.width, *geometry.size)
        if _is_pointwise(geometry):
            along = kernels.flatten(2) @ images.flatten(2)
        else:
            along = _each_convolved(images, kernels, geometry)
        return (gradients.flatten(2) * along.flatten(2)).reshape(len(a), -1).sum(1)


class _KernelNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, g: Tensor, geometry: Geometry, by_positions: bool) -> Tensor:
        ctx.save_for_backward(a, g)
        ctx.geometry, ctx.by_positions = geometry, by_positions
        norms = _norms_by_positions if by_positions else _norms_by_kernels
        with _precision_of_convolutions():
            return torch.cat([norms(a[part], g[part], geometry) for part in _parts(a, g, geometry, by_positions)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        a, g = ctx.saved_tensors
        for_a, for_g = torch.empty_like(a) if ctx.needs_input_grad[0] else None, torch.empty_like(g)
        halves = _halves_by_positions if ctx.by_positions else _halves_by_kernels
        with _precision_of_convolutions():
            for part in _parts(a, g, ctx.geometry, ctx.by_positions):
                twice = 2 * upstream[part, None, None, None]
                of_a, of_g = halves(a[part], g[part], ctx.geometry, for_a is not None)
                torch.mul(of_g, twice, out=for_g[part])
                if for_a is not None:
                    torch.mul(cast(Tensor, of_a), twice, out=for_a[part])
        return for_a, for_g, None, None


def _positions_are_cheaper(a: Tensor, g: Tensor, geometry: Geometry) -> bool:
    taps, within, without = geometry.size[0] * geometry.size[1], a[0, 0].numel(), g[0, 0].numel()
    cuts = taps * (_CUT_ON_GPU if a.is_cuda else _CUT)
    positions = within**2 * geometry.width + without**2 * (geometry.out + cuts)
    return positions <= without * geometry.width * taps * geometry.out


def _parts(a: Tensor, g: Tensor, geometry: Geometry, by_positions: bool) -> list[slice]:
    """Shares of the images, as equal as they can be."""
    if by_positions:
        numbers = a[0, 0].numel() ** 2 + g[0, 0].numel() ** 2
    else:
        positions = g[0, 0].numel() if g.is_cuda else 0
        numbers = max(geometry.out, positions) * geometry.width * geometry.size[0] * geometry.size[1]
    pieces = min(len(a), -(-len(a) * numbers // (_CHUNK_ON_GPU if a.is_cuda else _CHUNK)))
    many = -(-len(a) // pieces)
    return [slice(first, first + many) for first in range(0, len(a), many)]


def _norms_by_positions(a: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
    return (_patch_products(a, g, geometry) * _products(g)).flatten(1).sum(1)


def _halves_by_positions(a: Tensor, g: Tensor, geometry: Geometry, wants_a: bool) -> tuple[Tensor | None, Tensor]:
    """The halves aS and GK of the derivatives."""
    of_g = (g.flatten(2) @ _square(_patch_products(a, g, geometry))).view(g.shape)
    if not wants_a:
        return None, of_g
    products = _products(g)
    pasted = a.new_zeros(len(a), *a.shape[2:], *a.shape[2:])
    for into, out_of in _cuts(a, g, geometry):
        pasted[out_of].add_(products[into])
    return (a.flatten(2) @ _square(pasted)).view(a.shape), of_g


def _patch_products(a: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
    """K, shape (n, *output, *output)."""
    products = _products(a)
    total = g.new_zeros(len(g), *g.shape[2:], *g.shape[2:])
    for into, out_of in _cuts(a, g, geometry):
        total[into].add_(products[out_of])
    return total


def _products(x: Tensor) -> Tensor:
    """Inner products over channels between positions, shape (n, height, width, height, width)."""
    rows = x.flatten(2)
    return (rows.mT @ rows).view(len(x), *x.shape[2:], *x.shape[2:])


def _square(products: Tensor) -> Tensor:
    return products.flatten(3).flatten(1, 2)


def _cuts(a: Tensor, g: Tensor, geometry: Geometry) -> Iterator[tuple[Cut, Cut]]:
    """For every tap the outputs where it sees the image, and the inputs it sees, as cuts of products of positions."""
    for taps in product(*map(range, geometry.size)):
        pairs = [_cut(a.shape[2 + axis], g.shape[2 + axis], geometry, axis, tap) for axis, tap in enumerate(taps)]
        if all(pairs):
            into, out_of = ((slice(None), *cut, *cut) for cut in zip(*cast("list[Cut]", pairs), strict=True))
            yield into, out_of


def _cut(inputs: int, outputs: int, geometry: Geometry, axis: int, tap: int) -> Cut | None:
    """Outputs and inputs along an axis, or None where the tap sees padding alone."""
    stride, offset = geometry.stride[axis], tap * geometry.dilation[axis] - geometry.padding[axis]
    first, after = max(0, -(offset // stride)), min(outputs, (inputs - 1 - offset) // stride + 1)
    if first >= after:
        return None
    start = first * stride + offset
    return slice(first, after), slice(start, start + (after - first - 1) * stride + 1, stride)


def _norms_by_kernels(a: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
    # The norm makes no tensor of squares.
    return cast(Tensor, torch.linalg.vector_norm(_kernels(a, g, geometry), dim=(1, 2, 3, 4))).square()


def _halves_by_kernels(a: Tensor, g: Tensor, geometry: Geometry, wants_a: bool) -> tuple[Tensor | None, Tensor]:
    """The halves G *ᵀ M and a * M of the derivatives."""
    if not a.is_cuda:
        kernels = _kernels(a, g, geometry)
        return _each_sent_back(g, a, kernels, geometry) if wants_a else None, _each_convolved(a, kernels, geometry)
    patches = _patches(a, geometry)
    kernels = g.flatten(2) @ patches
    of_a = _patches_sent_back(kernels, g, a, geometry) if wants_a else None
    return of_a, (kernels @ patches.mT).reshape(g.shape)


class _KernelGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
        ctx.save_for_backward(a, g)
        ctx.geometry = geometry
        with _precision_of_convolutions():
            return _kernels(a, g, geometry)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        a, g = ctx.saved_tensors
        with _precision_of_convolutions():
            for_a = _each_sent_back(g, a, u, ctx.geometry) if ctx.needs_input_grad[0] else None
            return for_a, _each_convolved(a, u, ctx.geometry) if ctx.needs_input_grad[1] else None, None


def _kernels(a: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
    """Mᵢ, shape (n, out, width, *size)."""
    if a.is_cuda:
        found = g.flatten(2) @ _patches(a, geometry)
        return found.reshape(*g.shape[:2], *geometry.size, geometry.width).permute(0, 1, 4, 2, 3)
    like = a.new_empty(len(a) * geometry.out, geometry.width, *geometry.size)
    found = kernel_gradient(_side_by_side(g), _side_by_side(a), like, replace(geometry, groups=len(a)))
    return found.reshape(len(a), -1, *found.shape[1:])


def _each_convolved(a: Tensor, kernels: Tensor, geometry: Geometry) -> Tensor:
    """Every image convolved with its own kernel, of kernels (n, out, width, *size)."""
    if a.is_cuda:
        found = _channels_last(kernels) @ _patches(a, geometry).mT
        return found.reshape(*found.shape[:2], *_output_size(a, geometry))
    found = convolve(_side_by_side(a), kernels.flatten(0, 1), replace(geometry, groups=len(a)))
    return found.reshape(len(a), -1, *found.shape[2:])


def _each_sent_back(g: Tensor, a: Tensor, kernels: Tensor, geometry: Geometry) -> Tensor:
    """The transpose of `_each_convolved`, shape of a."""
    if a.is_cuda:
        return _patches_sent_back(_channels_last(kernels), g, a, geometry)
    geometry = replace(geometry, groups=len(a))
    return input_gradient(_side_by_side(g), _side_by_side(a), kernels.flatten(0, 1), geometry).reshape(a.shape)


def _side_by_side(x: Tensor) -> Tensor:
    """One image (1, n·channels, height, width) with the channels of all."""
    return x.reshape(1, -1, *x.shape[2:])


def _channels_last(kernels: Tensor) -> Tensor:
    """Kernels (n, out, width, *size) as matrices (n, out, *size·width), in the order of `_patches`."""
    return kernels.permute(0, 1, 3, 4, 2).flatten(2)


def _output_size(a: Tensor, geometry: Geometry) -> tuple[int, int]:
    axes = zip(a.shape[2:], geometry.padding, geometry.dilation, geometry.size, geometry.stride, strict=True)
    height, width = ((length + 2 * p - d * (k - 1) - 1) // s + 1 for length, p, d, k, s in axes)
    return height, width


def _patches(a: Tensor, geometry: Geometry) -> Tensor:
    """What the kernel sees at every position, shape (n, positions, *size·width), by one copy."""
    (down, right), (step_down, step_right) = geometry.padding, geometry.stride
    padded = F.pad(a, (right, right, down, down))
    image, channel, row, column = padded.stride()
    shape = (len(a), *_output_size(a, geometry), *geometry.size, geometry.width)
    between_taps = row * geometry.dilation[0], column * geometry.dilation[1]
    strides = (image, row * step_down, column * step_right, *between_taps, channel)
    return padded.as_strided(shape, strides).reshape(len(a), shape[1] * shape[2], -1)


def _patches_sent_back(kernels: Tensor, g: Tensor, a: Tensor, geometry: Geometry) -> Tensor:
    """Σₜ of kernels (n, out, *size·width) times gₜ, added where the patch at t was taken; shape of a."""
    kernels = kernels.reshape(*kernels.shape[:2], -1, geometry.width).permute(0, 3, 2, 1).flatten(1, 2)
    return F.fold(
        kernels @ g.flatten(2), a.shape[2:], geometry.size, geometry.dilation, geometry.padding, geometry.stride
    )


@contextmanager
def _precision_of_convolutions() -> Iterator[None]:
    """Products that stand for convolutions may round to TF32 where convolutions may, which is torch's default."""
    products = torch.backends.cuda.matmul
    before, products.fp32_precision = products.fp32_precision, torch.backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]
    try:
        yield
    finally:
        products.fp32_precision = before


def _image(x: Tensor) -> Tensor:
    """(batch, channels, height, width) of (batch, channels, width) or of an image."""
    return x.unsqueeze(2) if x.dim() == 3 else x


def _is_pointwise(geometry: Geometry) -> bool:
    return geometry.size == geometry.stride == (1, 1) and geometry.padding == (0, 0)


def _single_group(layer: nn.Module, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Geometry]:
    """Images, output gradients and geometry with each group as an image, and without inputs that no 1x1 kernel sees."""
    images, geometry = _plane(cast(nn.Conv2d, layer), a)
    gradients = _image(g)
    if geometry.size == (1, 1) and geometry.padding == (0, 0):
        images = images[:, :, :: geometry.stride[0], :: geometry.stride[1]]
        geometry = replace(geometry, stride=(1, 1))
    if geometry.groups > 1:
        images, gradients = (x.reshape(len(x) * geometry.groups, -1, *x.shape[2:]) for x in (images, gradients))
        geometry = replace(geometry, out=geometry.out // geometry.groups, groups=1)
    return images, gradients, geometry


def _plane(layer: nn.Conv1d | nn.Conv2d, a: Tensor) -> tuple[Tensor, Geometry]:
    """The input as images, padded here where zeros of equal size on both sides cannot say it, and the geometry."""
    sides = padding_of(layer)
    said = layer.padding_mode == "zeros" and sides[::2] == sides[1::2]
    if not said and any(sides):
        a = F.pad(a, sides, mode="constant" if layer.padding_mode == "zeros" else layer.padding_mode)
    geometry = Geometry(
        out=layer.out_channels,
        width=layer.in_channels // layer.groups,
        size=_pair(layer.kernel_size, 1),
        stride=_pair(layer.stride, 1),
        padding=_pair(tuple(sides[-2::-2]), 0) if said else (0, 0),
        dilation=_pair(layer.dilation, 1),
        groups=layer.groups,
    )
    return _image(a), geometry


def _pair(values: tuple[int, ...], height: int) -> tuple[int, int]:
    return (values[0], values[1]) if len(values) == 2 else (height, values[0])


def padding_of(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> list[int]:
    """How much the layer adds before and after each axis, the last axis first, as `F.pad` takes it."""
    if layer.padding_mode != "zeros":
        return layer._reversed_padding_repeated_twice
    if isinstance(layer.padding, str):
        pairs = zip(layer.dilation, layer.kernel_size, strict=True)
        reach = [d * (taps - 1) if layer.padding == "same" else 0 for d, taps in pairs]
        each = [(n // 2, n - n // 2) for n in reach]
    else:
        each = [(n, n) for n in layer.padding]
    return [n for sides in reversed(each) for n in sides]
