"""nᵢ = ‖Mᵢ‖² with Mᵢ = GᵢᵀPᵢ from the patches laid out as rows P (T, d), one product of matrices for each image.

d runs over taps and, fastest, channels. ∂n/∂G = 2·P·Mᵀ, and ∂n/∂a sums 2·G·M over the patches that a position lies in:
for a stride of 1 a product of what the turned kernel sees in G with M. M is kept. Few and large steps, as a GPU wants.
"""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from .geometry import Geometry
from .kernel_contraction import Kept, KernelContraction, Size
from .rows import as_image, as_rows, windows


class Patches(KernelContraction):
    """By laid out patches; the cost is counted in numbers moved through memory."""

    # 1 GiB in float32.
    chunk = 2**28

    def cost(self, inputs: Size, outputs: Size, geometry: Geometry) -> int:
        """P written and read twice, M handled eight times, and what the derivative at a lays out."""
        positions, kernel = outputs[0] * outputs[1], geometry.out * geometry.patch
        return 4 * positions * geometry.patch + 8 * kernel + 2 * self._spread(inputs, outputs, geometry)

    def numbers(self, inputs: Size, outputs: Size, geometry: Geometry) -> int:
        """Those in the patches."""
        return max(outputs[0] * outputs[1] * geometry.patch, self._spread(inputs, outputs, geometry))

    def norms(self, a: Tensor, g: Tensor, geometry: Geometry, *, wants_a: bool, wants_g: bool) -> tuple[Tensor, Kept]:
        """M is kept, shape (n, o, d)."""
        kernels = torch.bmm(as_rows(g).mT, _patches(a, geometry))
        # The norm needs no tensor of squares.
        lengths: Tensor = torch.linalg.vector_norm(kernels.flatten(1), dim=1)
        return lengths.square(), (kernels,) if wants_g else ()

    def pullbacks(
        self, a: Tensor, g: Tensor, kept: Kept, twice: Tensor, geometry: Geometry, *, wants_a: bool
    ) -> tuple[Tensor | None, Tensor]:
        """With P laid out again."""
        kernels = kept[0] * twice.view(-1, 1, 1)
        for_g = as_image(torch.bmm(_patches(a, geometry), kernels.mT), g)
        return (_at_inputs(a, g, kernels, geometry) if wants_a else None), for_g

    def _spread(self, inputs: Size, outputs: Size, geometry: Geometry) -> int:
        if geometry.stride == (1, 1):
            return inputs[0] * inputs[1] * geometry.size[0] * geometry.size[1] * geometry.out
        return outputs[0] * outputs[1] * geometry.patch


def _patches(a: Tensor, geometry: Geometry) -> Tensor:
    """P, shape (n, T, d)."""
    if geometry.is_pointwise:
        return as_rows(a)
    return windows(a, geometry.size, stride=geometry.stride, padding=geometry.padding, dilation=geometry.dilation)


def _at_inputs(a: Tensor, g: Tensor, kernels: Tensor, geometry: Geometry) -> Tensor:
    """Each image of G convolved with its own transposed kernel (n, o, d), shape of a."""
    if geometry.is_pointwise:
        return as_image(torch.bmm(as_rows(g), kernels), a)
    if geometry.stride != (1, 1):
        return _pasted(a, g, torch.bmm(as_rows(g), kernels), geometry)
    taps = kernels.reshape(kernels.shape[0], geometry.out, *geometry.size, geometry.width)
    turned = taps.flip(2, 3).permute(0, 2, 3, 1, 4).flatten(1, 3)
    seen = windows(g, geometry.size, stride=(1, 1), padding=geometry.turned_padding, dilation=geometry.dilation)
    return as_image(torch.bmm(seen, turned), a)


def _pasted(a: Tensor, g: Tensor, patches: Tensor, geometry: Geometry) -> Tensor:
    """The sum of patches (n, T, d) at the places that `_patches` took them from, shape of a.

    Taps that lie within one stride of each other meet no input twice, so they are added in one step.
    """
    (tall, wide), (down, right), channels = g.shape[2:], geometry.padding, geometry.width
    height, width = a.shape[2] + 2 * down, a.shape[3] + 2 * right
    grid = a.new_zeros(a.shape[0], height, width, channels)
    (each, row, column, _), taps = grid.stride(), patches.contiguous()
    start, across = taps.storage_offset(), geometry.size[1] * channels
    whole = geometry.size[0] * across
    (s, t), (d, e) = geometry.stride, geometry.dilation
    for (top, rows), (left, columns) in product(*(_runs(geometry, axis) for axis in (0, 1))):
        size = (a.shape[0], tall, wide, rows, columns, channels)
        into = grid.as_strided(size, (each, s * row, t * column, row, column, 1), top * d * row + left * e * column)
        strides = (tall * wide * whole, wide * whole, whole, across, channels, 1)
        into.add_(taps.as_strided(size, strides, start + top * across + left * channels))
    return grid[:, down : down + a.shape[2], right : right + a.shape[3]].permute(0, 3, 1, 2)


def _runs(geometry: Geometry, axis: int) -> list[tuple[int, int]]:
    """The taps along an axis as runs that no two outputs share an input of: the first of each, and how many."""
    size, longest = geometry.size[axis], geometry.stride[axis] if geometry.dilation[axis] == 1 else 1
    return [(first, min(longest, size - first)) for first in range(0, size, longest)]
