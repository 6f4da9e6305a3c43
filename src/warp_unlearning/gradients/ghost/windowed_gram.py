"""nᵢ = Σₜₜ' Kₜₜ' Γₜₜ' as in `gram`, with all taps in one step.

K sums windows of A, the inner products of input positions, along its diagonals: both positions of a pair move by the
same tap. So does S, the sum of what Γ sends back to A, with zeros between outputs that a stride sets apart. K and Γ are
kept, which suits a GPU.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from .geometry import Geometry
from .kernel_contraction import Kept, KernelContraction, Size
from .rows import as_image, as_rows, padded_rows, windows_along


class WindowedGram(KernelContraction):
    """By inner products of positions; the cost is counted in numbers moved through memory."""

    # 1 GiB in float32.
    chunk = 2**28
    together = True

    def cost(self, inputs: Size, outputs: Size, geometry: Geometry) -> int:
        """Those of A, K, Γ and S, with every tap of a window read on its own."""
        taps = geometry.size[0] * geometry.size[1]
        return 4 * self._grid(inputs, geometry) + (2 * taps + 8) * (outputs[0] * outputs[1]) ** 2

    def numbers(self, inputs: Size, outputs: Size, geometry: Geometry) -> int:
        """Those in A, or in what is summed to S, and in K and Γ."""
        return self._grid(inputs, geometry) + 2 * (outputs[0] * outputs[1]) ** 2

    def norms(self, a: Tensor, g: Tensor, geometry: Geometry, *, wants_a: bool, wants_g: bool) -> tuple[Tensor, Kept]:
        """K and Γ are kept, shapes (n, T, T)."""
        rows, size = padded_rows(a, geometry.padding)
        between_patches = _diagonal_sums(_products(rows), size, geometry, geometry.stride)
        between_outputs = _products(as_rows(g))
        norms = (between_patches * between_outputs).sum((1, 2))
        return norms, (between_patches, between_outputs) if wants_g else ()

    def pullbacks(
        self, a: Tensor, g: Tensor, kept: Kept, twice: Tensor, geometry: Geometry, *, wants_a: bool
    ) -> tuple[Tensor | None, Tensor]:
        """∂n/∂G = 2·K·G and ∂n/∂a = 2·S·a, with images as rows."""
        between_patches, between_outputs = kept
        twice = twice.view(-1, 1, 1)
        for_g = as_image(torch.bmm(between_patches, as_rows(g) * twice), g)
        if not wants_a:
            return None, for_g
        spread = _spread(a, g, between_outputs, geometry)
        sent_back = _diagonal_sums(spread, (spread.shape[-2], spread.shape[-1]), geometry, (1, 1))
        return as_image(torch.bmm(sent_back, as_rows(a) * twice), a), for_g

    def _grid(self, inputs: Size, geometry: Geometry) -> int:
        height, width = (length + 2 * p for length, p in zip(inputs, geometry.padding, strict=True))
        return (height * width) ** 2


def _products(rows: Tensor) -> Tensor:
    """Inner products of rows (n, positions, channels), shape (n, positions, positions)."""
    return torch.bmm(rows, rows.mT)


def _spread(a: Tensor, g: Tensor, between_outputs: Tensor, geometry: Geometry) -> Tensor:
    """Γ with zeros around and, for a stride above 1, between, so that windows of it lie at the inputs."""
    (tall, wide), (down, right), count = g.shape[2:], geometry.stride, g.shape[0]
    pairs = between_outputs.reshape(count, tall, wide, tall, wide)
    if geometry.is_pointwise:
        return pairs
    if geometry.stride != (1, 1):
        apart = pairs.new_zeros(count, *((tall - 1) * down + 1, (wide - 1) * right + 1) * 2)
        apart[:, ::down, ::right, ::down, ::right] = pairs
        pairs = apart
    sides: list[int] = []
    for axis in (1, 0):
        before = geometry.turned_padding[axis]
        wanted = a.shape[2 + axis] + geometry.dilation[axis] * (geometry.size[axis] - 1)
        sides += [before, wanted - before - pairs.shape[1 + axis]]
    return torch.constant_pad_nd(pairs, sides * 2)


def _diagonal_sums(pairs: Tensor, size: Size, geometry: Geometry, stride: Size) -> Tensor:
    """Σ_δ pairs[t·stride + δ, t'·stride + δ] over taps δ, for contiguous pairs (n, *size, *size), shape (n, T, T)."""
    if geometry.size == (1, 1) and stride == (1, 1):
        return pairs.reshape(pairs.shape[0], size[0] * size[1], -1)
    windows, strides, positions = _windows(size, geometry.size, stride, geometry.dilation)
    count = pairs.shape[0]
    summed = pairs.as_strided((count, *windows), ((size[0] * size[1]) ** 2, *strides)).sum((5, 6))
    return summed.reshape(count, positions, positions)


@lru_cache(maxsize=256)
def _windows(size: Size, taps: Size, stride: Size, dilation: Size) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Shape and steps of all windows along the diagonals of pairs (*size, *size), and how many there are of a side."""
    fit = windows_along(size, taps, stride=stride, dilation=dilation)
    height, width = size
    steps = (width * height * width, height * width, width, 1)
    diagonal = dilation[0] * (steps[0] + steps[2]), dilation[1] * (steps[1] + steps[3])
    apart = (step * s for step, s in zip(steps, stride * 2, strict=True))
    return (*fit, *fit, *taps), (*apart, *diagonal), fit[0] * fit[1]
