"""The rule of Conv1d and Conv2d: with patches p and positions t, ∂ℓ/∂W = Σₜ gₜpₜᵀ in each group and ∂ℓ/∂b = Σₜ gₜ.

‖∂ℓᵢ/∂W‖² comes from the cheaper of two contractions, for a few images at a time and with nothing kept for the backward
pass:

- Inner products of positions, nᵢ = Σₜₜ' Kₜₜ'Γₜₜ', with K those of patches and Γ those of output gradients. Tap δ of the
  patch at t lies at the input position s(t, δ), so K is a sum over taps of slices of the inner products A of input
  positions, Kₜₜ' = Σ_δ A[s(t, δ), s(t', δ)]. With S the sum of the slices of Γ put back to where those of A came from,
  ∂n/∂a = 2aS and ∂n/∂G = 2GK.
- Kernel gradients, nᵢ = ‖Mᵢ‖². One convolution in which each image is a group gives all Mᵢ. For a cotangent U of M the
  derivatives are such convolutions too, ∂/∂G = a * U and ∂/∂a = G *ᵀ U. A GPU is slow with so many groups, and there
  all three are products with the patches, laid out in memory.

A Conv1d is a Conv2d of height 1. Groups count as images, and strides of 1x1 kernels leave out inputs beforehand.
`tracing` calls the rule by way of the registry in `rules`.
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

from ..modules import padded, padding_of
from .double_backward import Geometry, convolve, convolved, input_gradient, kernel_gradient
from .rules import GhostRule, Phase, register, squared_outer_norm

# Numbers of intermediate results that exist at one time: 4 MiB in float32, which caches hold, and 1 GiB on a GPU.
_CHUNK, _CHUNK_ON_GPU = 2**20, 2**28
# What adding a number of a slice to a sum costs, in multiplications: memory is a GPU's limit there.
_ADDITION, _ADDITION_ON_GPU = 1, 40

Slices = tuple[slice, ...]
# Half of the derivatives at the inputs a, None where they are not needed, and at the output gradients g.
Halves = tuple[Tensor | None, Tensor]


@register(nn.Conv1d, nn.Conv2d)
class ConvolutionRule(GhostRule):
    """Kernel and bias, inputs (batch, channels, ...)."""

    def output(self, layer: nn.Module, forward: Callable[[Tensor], Tensor], a: Tensor, phase: Phase) -> Tensor:
        """The layer's output for images a, by a convolution that is cheap to differentiate twice."""
        convolution = cast(nn.Conv2d, layer)
        if a.dim() != convolution.weight.dim():
            return forward(a)
        images, geometry = _as_images(convolution, a)
        output = convolved(images, _with_height(convolution.weight), geometry, phase)
        output = output.squeeze(2) if a.dim() == 3 else output
        return output if convolution.bias is None else output + convolution.bias.reshape(-1, *[1] * (a.dim() - 2))

    def gradient(self, layer: nn.Module, name: str, a: Tensor, g: Tensor) -> Tensor:
        """∂ℓᵢ/∂θ from images a and output gradients g: (batch, *kernel), or of the bias (batch, channels out)."""
        if name == "bias":
            return g.flatten(2).sum(2)
        kernel = cast(nn.Conv2d, layer).weight
        images, gradients, geometry = _single_group(layer, a, g)
        if _is_pointwise(geometry):
            return (gradients.flatten(2) @ images.flatten(2).mT).reshape(len(a), *kernel.shape)
        found = cast(Tensor, _KernelGradient.apply(images, gradients, geometry))  # type: ignore[no-untyped-call]
        return found.reshape(len(a), *kernel.shape)

    def squared_norm(self, layer: nn.Module, names: Collection[str], a: Tensor, g: Tensor) -> Tensor:
        """Σ ‖∂ℓᵢ/∂θ‖² over kernel and bias, those in `names`; the kernel's part by the cheaper contraction."""
        if "weight" not in names:
            return super().squared_norm(layer, names, a, g)
        images, gradients, geometry = _single_group(layer, a, g)
        if _is_pointwise(geometry):
            squared = squared_outer_norm(images.flatten(2).mT, gradients.flatten(2).mT)
        else:
            by_positions = _positions_are_cheaper(images, gradients, geometry)
            squared = cast(Tensor, _SquaredKernelNorm.apply(images, gradients, geometry, by_positions))  # type: ignore[no-untyped-call]
        squared = squared.reshape(len(a), -1).sum(1)
        return squared + super().squared_norm(layer, ["bias"], a, g) if "bias" in names else squared

    def alignment(self, layer: nn.Module, name: str, a: Tensor, g: Tensor, direction: Tensor) -> Tensor:
        """⟨∂ℓᵢ/∂θ, Tᵢ⟩ for directions T; the kernel's as Σₜ gₜ·(a * T)ₜ, without forming ∂ℓᵢ/∂W."""
        if name == "bias":
            return super().alignment(layer, name, a, g, direction)
        images, gradients, geometry = _single_group(layer, a, g)
        kernels = direction.reshape(len(images), geometry.out, geometry.width, *geometry.size)
        if _is_pointwise(geometry):
            convolution = kernels.flatten(2) @ images.flatten(2)
        else:
            convolution = _each_convolved(images, kernels, geometry)
        return (gradients.flatten(2) * convolution.flatten(2)).reshape(len(a), -1).sum(1)


class _SquaredKernelNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, g: Tensor, geometry: Geometry, by_positions: bool) -> Tensor:
        """‖∂ℓᵢ/∂W‖² of every image, a chunk of images at a time, by one of the two contractions."""
        ctx.save_for_backward(a, g)
        ctx.geometry, ctx.by_positions = geometry, by_positions
        squared = _squared_norms_by_positions if by_positions else _squared_norms_by_kernels
        with _precision_of_convolutions():
            return torch.cat([squared(a[part], g[part], geometry) for part in _chunks(a, g, geometry, by_positions)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        """The gradients at the images a and the output gradients g, one chunk of examples after another."""
        a, g = ctx.saved_tensors
        at_a, at_g = torch.empty_like(a) if ctx.needs_input_grad[0] else None, torch.empty_like(g)
        half_gradients = _half_gradients_by_positions if ctx.by_positions else _half_gradients_by_kernels
        with _precision_of_convolutions():
            for chunk in _chunks(a, g, ctx.geometry, ctx.by_positions):
                # The 2 of the derivative of a square.
                twice = 2 * upstream[chunk, None, None, None]
                half_at_a, half_at_g = half_gradients(a[chunk], g[chunk], ctx.geometry, at_a is not None)
                torch.mul(half_at_g, twice, out=at_g[chunk])
                if at_a is not None:
                    torch.mul(cast(Tensor, half_at_a), twice, out=at_a[chunk])
        return at_a, at_g, None, None


def _positions_are_cheaper(a: Tensor, g: Tensor, geometry: Geometry) -> bool:
    """Whether inner products of positions take fewer multiplications than kernel gradients."""
    taps, inputs, outputs = geometry.size[0] * geometry.size[1], a[0, 0].numel(), g[0, 0].numel()
    additions = taps * (_ADDITION_ON_GPU if a.is_cuda else _ADDITION)
    by_positions = inputs**2 * geometry.width + outputs**2 * (geometry.out + additions)
    return by_positions <= outputs * geometry.width * taps * geometry.out


def _chunks(a: Tensor, g: Tensor, geometry: Geometry, by_positions: bool) -> list[slice]:
    """Slices of nearly equal size that cut the batch, each small enough for its intermediate results in memory."""
    if by_positions:
        numbers_per_image = a[0, 0].numel() ** 2 + g[0, 0].numel() ** 2
    else:
        positions = g[0, 0].numel() if g.is_cuda else 0
        numbers_per_image = max(geometry.out, positions) * geometry.width * geometry.size[0] * geometry.size[1]
    count = min(len(a), -(-len(a) * numbers_per_image // (_CHUNK_ON_GPU if a.is_cuda else _CHUNK)))
    size = -(-len(a) // count)
    return [slice(first, first + size) for first in range(0, len(a), size)]


def _squared_norms_by_positions(a: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
    """nᵢ = Σₜₜ' Kₜₜ'Γₜₜ', the first contraction."""
    return (_patch_products(a, g, geometry) * _products(g)).flatten(1).sum(1)


def _half_gradients_by_positions(a: Tensor, g: Tensor, geometry: Geometry, wants_a: bool) -> Halves:
    """Half the derivatives of nᵢ = Σ Kₜₜ'Γₜₜ': aS at the images, None unless `wants_a`, and GK at g."""
    half_at_g = (g.flatten(2) @ _as_matrices(_patch_products(a, g, geometry))).view(g.shape)
    if not wants_a:
        return None, half_at_g
    products = _products(g)
    pasted = a.new_zeros(len(a), *a.shape[2:], *a.shape[2:])
    for _, of_outputs, of_inputs in _tap_slices(a, g, geometry):
        pasted[(slice(None), *of_inputs, *of_inputs)].add_(products[(slice(None), *of_outputs, *of_outputs)])
    return (a.flatten(2) @ _as_matrices(pasted)).view(a.shape), half_at_g


def _patch_products(a: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
    """K, the inner products of the patches at any two output positions, shape (n, *output, *output)."""
    products = _products(a)
    total = g.new_zeros(len(g), *g.shape[2:], *g.shape[2:])
    for _, of_outputs, of_inputs in _tap_slices(a, g, geometry):
        total[(slice(None), *of_outputs, *of_outputs)].add_(products[(slice(None), *of_inputs, *of_inputs)])
    return total


def _products(x: Tensor) -> Tensor:
    """Inner products over channels between positions, shape (n, height, width, height, width)."""
    positions = x.flatten(2)
    return (positions.mT @ positions).view(len(x), *x.shape[2:], *x.shape[2:])


def _as_matrices(products: Tensor) -> Tensor:
    """Products (n, height, width, height, width) as (n, positions, positions)."""
    return products.flatten(3).flatten(1, 2)


def _tap_slices(a: Tensor, g: Tensor, geometry: Geometry) -> Iterator[tuple[tuple[int, int], Slices, Slices]]:
    """Every tap that reads the image, with the outputs at which it does and the inputs it reads there."""
    for tap in product(range(geometry.size[0]), range(geometry.size[1])):
        axes = [_axis_slices(a.shape[2 + axis], g.shape[2 + axis], geometry, axis, tap[axis]) for axis in (0, 1)]
        if all(axes):
            of_outputs, of_inputs = zip(*cast("list[Slices]", axes), strict=True)
            yield tap, of_outputs, of_inputs


def _axis_slices(inputs: int, outputs: int, geometry: Geometry, axis: int, tap: int) -> Slices | None:
    """Along one axis, the outputs at which a tap reads the image and the inputs it reads; None if it reads none."""
    stride, offset = geometry.stride[axis], tap * geometry.dilation[axis] - geometry.padding[axis]
    first, end = max(0, -(offset // stride)), min(outputs, (inputs - 1 - offset) // stride + 1)
    if first >= end:
        return None
    start = first * stride + offset
    return slice(first, end), slice(start, start + (end - first - 1) * stride + 1, stride)


def _squared_norms_by_kernels(a: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
    """nᵢ = ‖Mᵢ‖², the second contraction; `vector_norm` makes no tensor of squares."""
    return cast(Tensor, torch.linalg.vector_norm(_kernels(a, g, geometry), dim=(1, 2, 3, 4))).square()


def _half_gradients_by_kernels(a: Tensor, g: Tensor, geometry: Geometry, wants_a: bool) -> Halves:
    """Half the derivatives of nᵢ = ‖Mᵢ‖²: G *ᵀ M at the images, None unless `wants_a`, and a * M at g."""
    if not a.is_cuda:
        kernels = _kernels(a, g, geometry)
        return _each_transposed_convolution(g, a, kernels, geometry) if wants_a else None, _each_convolved(
            a, kernels, geometry
        )
    patches = _patches(a, geometry)
    kernels = g.flatten(2) @ patches.mT
    of_a = _patches_added(kernels.mT @ g.flatten(2), a, g, geometry) if wants_a else None
    return of_a, (kernels @ patches).reshape(g.shape)


class _KernelGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
        """The kernel gradients Mᵢ = ∂ℓᵢ/∂W, with derivatives that are such convolutions too."""
        ctx.save_for_backward(a, g)
        ctx.geometry = geometry
        with _precision_of_convolutions():
            return _kernels(a, g, geometry)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """For a cotangent u of M: at a, G *ᵀ u; at g, a * u."""
        a, g = ctx.saved_tensors
        with _precision_of_convolutions():
            for_a = _each_transposed_convolution(g, a, u, ctx.geometry) if ctx.needs_input_grad[0] else None
            return for_a, _each_convolved(a, u, ctx.geometry) if ctx.needs_input_grad[1] else None, None


def _kernels(a: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
    """The kernel gradients Mᵢ of all images, shape (n, out, width, *size)."""
    if a.is_cuda:
        found = g.flatten(2) @ _patches(a, geometry).mT
        return found.reshape(*g.shape[:2], geometry.width, *geometry.size)
    like = a.new_empty(len(a) * geometry.out, geometry.width, *geometry.size)
    found = kernel_gradient(_side_by_side(g), _side_by_side(a), like, replace(geometry, groups=len(a)))
    return found.reshape(len(a), -1, *found.shape[1:])


def _each_convolved(a: Tensor, kernels: Tensor, geometry: Geometry) -> Tensor:
    """Every image convolved with its own kernel, of kernels (n, out, width, *size)."""
    if a.is_cuda:
        found = kernels.flatten(2) @ _patches(a, geometry)
        return found.reshape(*found.shape[:2], *_output_size(a, geometry))
    found = convolve(_side_by_side(a), kernels.flatten(0, 1), replace(geometry, groups=len(a)))
    return found.reshape(len(a), -1, *found.shape[2:])


def _each_transposed_convolution(g: Tensor, a: Tensor, kernels: Tensor, geometry: Geometry) -> Tensor:
    """Every g put back by its own kernel, the transpose of `_each_convolved`; shape of a."""
    if a.is_cuda:
        return _patches_added(kernels.flatten(2).mT @ g.flatten(2), a, g, geometry)
    geometry = replace(geometry, groups=len(a))
    return input_gradient(_side_by_side(g), _side_by_side(a), kernels.flatten(0, 1), geometry).reshape(a.shape)


def _side_by_side(x: Tensor) -> Tensor:
    """The images as one with the channels of all, (1, n·channels, height, width): each is a group of a convolution."""
    return x.reshape(1, -1, *x.shape[2:])


def _output_size(a: Tensor, geometry: Geometry) -> tuple[int, int]:
    """Height and width of the convolution's output."""
    axes = zip(a.shape[2:], geometry.padding, geometry.dilation, geometry.size, geometry.stride, strict=True)
    height, width = ((length + 2 * p - d * (k - 1) - 1) // s + 1 for length, p, d, k, s in axes)
    return height, width


def _patches(a: Tensor, geometry: Geometry) -> Tensor:
    """What the kernel sees at every position, shape (n, width·taps, positions): `F.unfold` by one copy."""
    (down, right), (step_down, step_right) = geometry.padding, geometry.stride
    padded = F.pad(a, (right, right, down, down))
    image, channel, row, column = padded.stride()
    shape = (len(a), geometry.width, *geometry.size, *_output_size(a, geometry))
    between_taps = row * geometry.dilation[0], column * geometry.dilation[1]
    strides = (image, channel, *between_taps, row * step_down, column * step_right)
    return padded.as_strided(shape, strides).reshape(len(a), -1, shape[4] * shape[5])


def _patches_added(patches: Tensor, a: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
    """The transpose of `_patches`: every number added where it was taken from, tap by tap; shape of a."""
    patches = patches.reshape(len(a), -1, *geometry.size, *g.shape[2:])
    total, every = patches.new_zeros(a.shape), (slice(None), slice(None))
    for (down, right), of_outputs, of_inputs in _tap_slices(a, g, geometry):
        total[(*every, *of_inputs)].add_(patches[:, :, down, right][(*every, *of_outputs)])
    return total


@contextmanager
def _precision_of_convolutions() -> Iterator[None]:
    """Products that stand for convolutions may round to TF32 where convolutions may, which is torch's default."""
    products = torch.backends.cuda.matmul
    before, products.fp32_precision = products.fp32_precision, torch.backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]
    try:
        yield
    finally:
        products.fp32_precision = before


def _with_height(x: Tensor) -> Tensor:
    """(batch, channels, height, width) of (batch, channels, width) or of an image."""
    return x.unsqueeze(2) if x.dim() == 3 else x


def _is_pointwise(geometry: Geometry) -> bool:
    """Whether the kernel sees one position at a time, so that the layer is linear at each position."""
    return geometry.size == geometry.stride == (1, 1) and geometry.padding == (0, 0)


def _single_group(layer: nn.Module, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Geometry]:
    """Images, output gradients and geometry with each group as an image, and without inputs that no 1x1 kernel sees."""
    images, geometry = _as_images(cast(nn.Conv2d, layer), a)
    gradients = _with_height(g)
    if geometry.size == (1, 1) and geometry.padding == (0, 0):
        images = images[:, :, :: geometry.stride[0], :: geometry.stride[1]]
        geometry = replace(geometry, stride=(1, 1))
    if geometry.groups > 1:
        images, gradients = (x.reshape(len(x) * geometry.groups, -1, *x.shape[2:]) for x in (images, gradients))
        geometry = replace(geometry, out=geometry.out // geometry.groups, groups=1)
    return images, gradients, geometry


def _as_images(layer: nn.Conv1d | nn.Conv2d, a: Tensor) -> tuple[Tensor, Geometry]:
    """The input as images, and the geometry. Padding other than as many zeros on both sides is added here."""
    sides = padding_of(layer)
    by_convolution = layer.padding_mode == "zeros" and sides[::2] == sides[1::2]
    geometry = Geometry(
        out=layer.out_channels,
        width=layer.in_channels // layer.groups,
        size=_pair(layer.kernel_size, 1),
        stride=_pair(layer.stride, 1),
        padding=_pair(tuple(sides[-2::-2]), 0) if by_convolution else (0, 0),
        dilation=_pair(layer.dilation, 1),
        groups=layer.groups,
    )
    return _with_height(a if by_convolution else padded(layer, a)), geometry


def _pair(values: tuple[int, ...], height: int) -> tuple[int, int]:
    """(height, width) of a Conv2d's setting, or of a Conv1d's with the given height."""
    return (values[0], values[1]) if len(values) == 2 else (height, values[0])
