"""Norms of the scale's and the shift's gradients of batch norms, of all layers together.

With x̂ = (a − μ)r, h = Σₜ gₜx̂ₜ and k = Σₜ gₜ: n = ‖h‖² + ‖k‖², ∂n/∂a = 2hrG and ∂n/∂G = 2(hx̂ + k). Sums over positions
are found for layers of one shape at once, and what follows for the channels of all layers in one row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Numbers that are copied faster than a GPU is given a few more steps for each layer.
STACKED = 2**25


@dataclass(frozen=True)
class AffineUse:
    """Input and output gradient of a batch norm (batch, channels, ...), and its μ and r, shape (channels,)."""

    a: Tensor
    g: Tensor
    mean: Tensor
    r: Tensor


def affine_norms(uses: Sequence[AffineUse], names: Collection[str]) -> Tensor:
    """Σ n over the uses and the parameters `names`, shape (batch,), differentiable once in every a and g."""
    kin: dict[torch.Size, list[AffineUse]] = {}
    for use in uses:
        kin.setdefault(use.a.shape, []).append(use)
    # Uses of one shape lie next to each other.
    ordered = [use for some in kin.values() for use in some]
    means = torch.cat([use.mean for use in ordered])
    r = torch.cat([use.r for use in ordered])
    counts = [len(some) for some in kin.values()]
    tensors = (*(use.a for use in ordered), *(use.g for use in ordered))
    found = _AffineNorms.apply(means, r, counts, frozenset(names), *tensors)  # type: ignore[no-untyped-call]
    return cast(Tensor, found)


class _AffineNorms(torch.autograd.Function):
    """a and then G of every layer; `counts` says how many in a row have the same shape."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, r: Tensor, counts: list[int], names: frozenset[str], *inputs: Tensor) -> Tensor:
        half = len(inputs) // 2
        sums = inputs[0].new_empty(inputs[0].shape[0], 2, mean.shape[0])
        blocks = list(_blocks(counts, inputs[:half]))
        stacks: list[Tensor] = []
        for block in blocks:
            a, g = (_stacked(some[block.place]) for some in (inputs[:half], inputs[half:]))
            torch.sum(a * g, block.positions, out=block.part_of(sums[:, 0]))
            torch.sum(g, block.positions, out=block.part_of(sums[:, 1]))
            stacks += (a, g)
        h, k = sums.unbind(1)
        if "weight" in names:
            h.addcmul_(k, mean, value=-1).mul_(r)
        else:
            h.zero_()
        if "bias" not in names:
            k.zero_()
        norms = sums.square().sum((1, 2))
        h.mul_(r)
        ctx.save_for_backward(sums, mean, *stacks)
        ctx.blocks = blocks
        return norms

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        sums, mean, *stacks = ctx.saved_tensors
        scales, shifts = (sums * (2 * upstream)[:, None, None]).unbind(1)
        shifts.addcmul_(scales, mean, value=-1)
        wanted = ctx.needs_input_grad[4:]
        for_a: list[Tensor | None] = []
        for_g: list[Tensor] = []
        for block, a, g in zip(ctx.blocks, stacks[::2], stacks[1::2], strict=True):
            scale, shift = (block.beside_positions(block.part_of(row)) for row in (scales, shifts))
            for_a += block.images(g * scale) if any(wanted[block.place]) else [None] * block.layers
            for_g += block.images(torch.addcmul(shift, a, scale))
        return None, None, None, None, *for_a, *for_g


class _Block:
    """Layers of one shape that are taken at once: which they are, and where their channels stand in the row."""

    def __init__(self, first: int, layers: int, shape: torch.Size, start: int) -> None:
        self.place, self.layers, self.shape = slice(first, first + layers), layers, shape
        self.columns = slice(start, start + layers * shape[1])
        self.positions = tuple(range(2, max(len(shape), 3)))

    def part_of(self, row: Tensor) -> Tensor:
        """The channels of these layers in a tensor (batch, channels of all), as a view (layers, batch, channels)."""
        return row[:, self.columns].view(-1, self.layers, self.shape[1]).transpose(0, 1)

    def beside_positions(self, part: Tensor) -> Tensor:
        """(layers, batch, 1, ..., channels) of (layers, batch, channels)."""
        return part[(slice(None), slice(None), *[None] * len(self.positions))]

    def images(self, found: Tensor) -> Sequence[Tensor]:
        """What was found for a or G, layer by layer."""
        return found.movedim(-1, 2).reshape(self.layers, *self.shape).unbind()


def _blocks(counts: Sequence[int], inputs: Sequence[Tensor]) -> Iterator[_Block]:
    first = start = 0
    for count in counts:
        shape = inputs[first].shape
        layers = count if count * shape.numel() <= STACKED else 1
        for index in range(first, first + count, layers):
            yield _Block(index, layers, shape, start)
            start += layers * shape[1]
        first += count


def _stacked(images: Sequence[Tensor]) -> Tensor:
    """(layers, batch, *positions, channels): where channels run fastest they go on to; a vector has one position."""
    rows = [x.movedim(1, -1) if x.dim() > 2 else x[:, None] for x in images]
    return rows[0][None] if len(rows) == 1 else torch.stack(rows)
