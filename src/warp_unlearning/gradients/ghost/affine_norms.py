"""Norms of the scale's and the shift's gradients of batch norms, of all layers together.

With x̂ = (a − μ)r, h = Σₜ gₜx̂ₜ and k = Σₜ gₜ: n = ‖h‖² + ‖k‖², ∂n/∂a = 2hrG and ∂n/∂G = 2(hx̂ + k). Sums over positions
are found for small layers of one shape at once, and what follows for the channels of all layers in one row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .summand import Entry, Summand, summed

# Numbers that are copied faster than a GPU is given a few more steps for each layer.
STACKED = 2**25


class AffineUse(NamedTuple):
    """Input and output gradient of a batch norm (batch, channels, ...), and its μ and r, shape (channels,)."""

    a: Tensor
    g: Tensor
    mean: Tensor
    r: Tensor


def affine_norms(uses: Sequence[AffineUse], names: Collection[str]) -> Tensor:
    """Σ n over the uses and the parameters `names`, shape (batch,), differentiable once in every a and g."""
    return summed([affine_entry(uses, names)])


def affine_entry(uses: Sequence[AffineUse], names: Collection[str]) -> Entry:
    """The same as a summand: of the a of every layer and then every G."""
    kin: dict[torch.Size, list[AffineUse]] = {}
    for use in uses:
        kin.setdefault(use.a.shape, []).append(use)
    # Uses of one shape lie next to each other.
    ordered = [use for some in kin.values() for use in some]
    means, r = (torch.cat(row) for row in ([use.mean for use in ordered], [use.r for use in ordered]))
    tensors = (*(use.a for use in ordered), *(use.g for use in ordered))
    return _AffineNorms(means, r, [len(some) for some in kin.values()], names), tensors


class _AffineNorms(Summand):
    """`counts` says how many layers in a row have the same shape."""

    def __init__(self, mean: Tensor, r: Tensor, counts: Sequence[int], names: Collection[str]) -> None:
        self._mean, self._r, self._counts, self._names = mean, r, counts, names

    def norms(self, tensors: Sequence[Tensor], wanted: Sequence[bool]) -> tuple[Tensor, Sequence[Tensor]]:
        """Both hr and k are kept, shape (batch, 2·channels), and what was stacked."""
        half = len(tensors) // 2
        self._blocks = list(_blocks(self._counts, tensors[:half]))
        stacks: list[Tensor] = []
        of_products: list[Tensor] = []
        of_gradients: list[Tensor] = []
        for block in self._blocks:
            a, g = block.taken(tensors[:half]), block.taken(tensors[half:])
            of_products += block.sums(a * g)
            of_gradients += block.sums(g)
            if block.layers > 1:
                stacks += (a, g)
        sums = torch.cat(of_products + of_gradients, 1)
        h, k = sums.chunk(2, 1)
        if "weight" in self._names:
            h.addcmul_(k, self._mean, value=-1).mul_(self._r)
        else:
            h.zero_()
        if "bias" not in self._names:
            k.zero_()
        norms = sums.square().sum(1)
        h.mul_(self._r)
        return norms, (sums, *stacks)

    def pullbacks(
        self, tensors: Sequence[Tensor], kept: Sequence[Tensor], wanted: Sequence[bool], twice: Tensor
    ) -> Sequence[Tensor | None]:
        """With 2hr and 2(k − hrμ) for all channels at once."""
        half = len(tensors) // 2
        sums, *stacks = kept
        numbers = sums * twice[:, None]
        scales, shifts = numbers.chunk(2, 1)
        shifts.addcmul_(scales, self._mean, value=-1)
        for_a: list[Tensor | None] = []
        for_g: list[Tensor] = []
        for block, (scale, shift) in zip(self._blocks, _parts(numbers, self._blocks), strict=True):
            one = block.layers == 1
            a, g = (tensors[block.first], tensors[half + block.first]) if one else (stacks.pop(0), stacks.pop(0))
            for_a += block.images(g * scale) if any(wanted[block.place]) else [None] * block.layers
            for_g += block.images(torch.addcmul(shift, a, scale))
        return *for_a, *for_g


class _Block:
    """Layers of one shape that are taken at once: which they are, and how many channels they have in the row."""

    def __init__(self, first: int, layers: int, shape: torch.Size) -> None:
        self.first, self.layers, self.shape = first, layers, shape
        self.place, self.channels = slice(first, first + layers), layers * shape[1]
        axes = len(shape) if layers == 1 else len(shape) + 1
        self._positions = tuple(range(axes + 2 - len(shape), axes))

    def taken(self, images: Sequence[Tensor]) -> Tensor:
        """The layer's images as they are, or those of several as one tensor (layers, batch, channels, ...)."""
        if self.layers == 1:
            return images[self.first]
        # Not stacked: joined along the batch they keep their layout.
        return torch.cat(list(images[self.place])).view(self.layers, *self.shape)

    def sums(self, each: Tensor) -> Sequence[Tensor]:
        """Over positions, layer by layer, shapes (batch, channels)."""
        found = each.sum(self._positions) if self._positions else each
        return [found] if self.layers == 1 else found.unbind()

    def beside_images(self, part: Tensor) -> Tensor:
        """Numbers of these channels (batch, channels, 1, ...) in the shape that multiplies images."""
        if self.layers == 1:
            return part
        return part.view(part.shape[0], self.layers, *self.shape[1:2], *part.shape[2:]).transpose(0, 1)

    def images(self, found: Tensor) -> Sequence[Tensor]:
        """What was found for a or G, layer by layer."""
        return [found] if self.layers == 1 else found.unbind()


def _blocks(counts: Sequence[int], inputs: Sequence[Tensor]) -> Iterator[_Block]:
    first = 0
    for count in counts:
        shape = inputs[first].shape
        layers = count if count * shape.numel() <= STACKED else 1
        for index in range(first, first + count, layers):
            yield _Block(index, layers, shape)
        first += count


def _parts(numbers: Tensor, blocks: Sequence[_Block]) -> list[tuple[Tensor, Tensor]]:
    """Of two rows in `numbers` (batch, 2·channels), the channels of each block beside its images."""
    sizes = [block.channels for block in blocks] * 2
    # Cut at once for all blocks whose images have as many axes.
    cut = {
        axes: _with_ones(numbers, axes).split_with_sizes(sizes, 1) for axes in {len(block.shape) for block in blocks}
    }
    return [
        (block.beside_images(cut[axes][index]), block.beside_images(cut[axes][index + len(blocks)]))
        for index, (block, axes) in enumerate((block, len(block.shape)) for block in blocks)
    ]


def _with_ones(numbers: Tensor, axes: int) -> Tensor:
    return numbers.view(*numbers.shape, *[1] * (axes - 2))
