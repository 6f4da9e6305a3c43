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
    """The sum of patches (n, T, d) at the places that `_patches` took them from, shape of a, tap by tap."""
    (tall, wide), (down, right) = g.shape[2:], geometry.padding
    taps = patches.view(a.shape[0], tall, wide, -1, geometry.width).unbind(3)
    grid = a.new_zeros(a.shape[0], a.shape[2] + 2 * down, a.shape[3] + 2 * right, geometry.width)
    places = product(range(geometry.size[0]), range(geometry.size[1]))
    for (row, column), tap in zip(places, taps, strict=True):
        top, left = row * geometry.dilation[0], column * geometry.dilation[1]
        rows = slice(top, top + geometry.stride[0] * (tall - 1) + 1, geometry.stride[0])
        columns = slice(left, left + geometry.stride[1] * (wide - 1) + 1, geometry.stride[1])
        grid[:, rows, columns].add_(tap)
    return grid[:, down : down + a.shape[2], right : right + a.shape[3]].permute(0, 3, 1, 2)
