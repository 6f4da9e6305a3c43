"""Moves: invertible maps of a network's weights that keep its function, and how other quantities follow them (momentum
does so in `training.stepper`).

Under θ′ = T(θ), with T affine and acting on each tensor by itself:

- a *point* (weights, an anchor, a snapshot) becomes T(point);
- a *covector* (a gradient, a momentum buffer that sums gradients) becomes T⁻ᵀ(covector), so that the loss changes along
  a step by the same amount in either coordinates;
- the *inputs* of a layer whose weight W became A W B become B⁻¹ inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Protocol

import torch
from torch import Tensor, nn


class Move(Protocol):
    """A map of the weights, by `state_dict` keys, and how other state follows it: unchanged unless a move says more."""

    def point(self, name: str, value: Tensor) -> Tensor:
        """Where the weights `value` of tensor `name` lie after the move."""
        return value

    def covector(self, name: str, value: Tensor) -> Tensor:
        """A gradient with respect to tensor `name`, seen after the move."""
        return value

    def selection(self, name: str, value: Tensor) -> Tensor:
        """A label on each entry of tensor `name` (a mask, say), following the entries wherever they go."""
        return value

    def inputs(self, name: str, value: Tensor) -> Tensor:
        """Where inputs of the layer with the weight `name` lie after the move: columns (d, k) or (groups, d, k), whose
        span is kept but not their orthonormality.
        """
        return value

    def inverse(self) -> Move:
        """The move back."""
        ...


@dataclass(frozen=True, eq=False)
class AxisMap:
    """One axis reordered, then rescaled, unless None: new entry i is `scale[i]` times old entry `order[i]`."""

    axis: int
    order: Tensor | None = None
    scale: Tensor | None = None

    @property
    def length(self) -> int:
        """How many entries there are along the axis; 0 for the identity, which does not say."""
        entries = self.order if self.order is not None else self.scale
        return 0 if entries is None else len(entries)

    def apply(self, value: Tensor) -> Tensor:
        value = self.reorder(value)
        return value if self.scale is None else value * self._along_axis(self.scale, value)

    def apply_inverse_transpose(self, value: Tensor) -> Tensor:
        value = self.reorder(value)
        return value if self.scale is None else value / self._along_axis(self.scale, value)

    def reorder(self, value: Tensor) -> Tensor:
        return value if self.order is None else value.index_select(self.axis, self.order.to(value.device))

    def inverse(self) -> AxisMap:
        """The map back: old entry `order[i]` is new entry i over `scale[i]`."""
        order = None if self.order is None else torch.argsort(self.order)
        if self.scale is None:
            return AxisMap(self.axis, order)
        return AxisMap(self.axis, order, scale=1 / (self.scale if order is None else self.scale[order]))

    def _along_axis(self, scale: Tensor, value: Tensor) -> Tensor:
        """The scale in a shape that multiplies `value` along the axis, on its device and in its type."""
        shape = [1] * value.dim()
        shape[self.axis] = -1
        return scale.to(device=value.device, dtype=value.dtype).reshape(shape)


@dataclass(frozen=True, eq=False)
class BlockMap:
    """Equal blocks of rows, each through its own map: in a grouped convolution each has inputs of its own on axis 1."""

    blocks: tuple[AxisMap, ...]

    def apply(self, value: Tensor) -> Tensor:
        return self._each(value, AxisMap.apply)

    def apply_inverse_transpose(self, value: Tensor) -> Tensor:
        return self._each(value, AxisMap.apply_inverse_transpose)

    def reorder(self, value: Tensor) -> Tensor:
        return self._each(value, AxisMap.reorder)

    def inverse(self) -> BlockMap:
        return BlockMap(tuple(block.inverse() for block in self.blocks))

    def _each(self, value: Tensor, how: Callable[[AxisMap, Tensor], Tensor]) -> Tensor:
        """Cut the rows in blocks, and put each through its map by the method `how`."""
        parts = value.chunk(len(self.blocks))
        return torch.cat([how(block, part) for block, part in zip(self.blocks, parts, strict=True)])


def in_blocks(maps: Sequence[AxisMap]) -> AxisMap | BlockMap:
    """One map of a whole tensor from the maps of its equal blocks of rows."""
    return maps[0] if len(maps) == 1 else BlockMap(tuple(maps))


@dataclass(frozen=True, eq=False)
class HeadMap:
    """Heads of an attention layer: runs of d entries along `axis`, from `start` on, each through a matrix of its own.

    `matrices` A has shape (heads, d, d): entry i of head h becomes Σⱼ A[h, i, j] · entry j of head h; what lies before
    and after the heads stays. Rows W of a head become A W; columns W, which are axis 1, become W Aᵀ. Computed in
    float64 and rounded once to the precision of the tensor.
    """

    axis: int
    matrices: Tensor
    start: int = 0

    def apply(self, value: Tensor) -> Tensor:
        return self._mix(value, self.matrices)

    def apply_inverse_transpose(self, value: Tensor) -> Tensor:
        return self._mix(value, torch.linalg.inv(self.matrices).mT)

    def reorder(self, value: Tensor) -> Tensor:
        """The labels as they are: a general matrix mixes all entries of a head."""
        return value

    def inverse(self) -> HeadMap:
        return HeadMap(self.axis, torch.linalg.inv(self.matrices), self.start)

    def _mix(self, value: Tensor, matrices: Tensor) -> Tensor:
        """Multiply the entries of each head by its matrix, in float64; entries outside the heads stay."""
        heads, width, _ = matrices.shape
        end = self.start + heads * width
        before, part, after = value.tensor_split((self.start, end), dim=self.axis)
        moved = part.movedim(self.axis, 0)
        blocks = moved.reshape(heads, width, -1).to(torch.float64)
        mixed = (matrices.to(device=value.device) @ blocks).to(value.dtype).reshape(moved.shape)
        return torch.cat((before, mixed.movedim(0, self.axis), after), dim=self.axis)


# A linear map of one tensor: `reorder` moves labels of entries, `apply_inverse_transpose` gradients.
TensorMap = AxisMap | BlockMap | HeadMap


@dataclass(frozen=True, eq=False)
class ChannelMove:
    """Hidden channels permuted and rescaled: each named tensor through its axes; tensors not named stay.

    `offsets` holds the ε of running variances: they become τ²(v + ε) − ε, exact including ε.
    """

    axes: Mapping[str, tuple[TensorMap, ...]]
    offsets: Mapping[str, float] = field(default_factory=dict)

    def point(self, name: str, value: Tensor) -> Tensor:
        """The tensor through its maps; a running variance with ε added for the while."""
        offset = self.offsets.get(name, 0.0)
        value = value + offset if offset else value
        for tensor_map in self.axes.get(name, ()):
            value = tensor_map.apply(value)
        return value - offset if offset else value

    def covector(self, name: str, value: Tensor) -> Tensor:
        """A gradient after the move: through the inverse transpose of each map."""
        for tensor_map in self.axes.get(name, ()):
            value = tensor_map.apply_inverse_transpose(value)
        return value

    def selection(self, name: str, value: Tensor) -> Tensor:
        """Labels of entries after the move: reordered, never rescaled."""
        for tensor_map in self.axes.get(name, ()):
            value = tensor_map.reorder(value)
        return value

    def inputs(self, name: str, value: Tensor) -> Tensor:
        """The layer's inputs after the move, by the maps of the weight's axis 1; they lie as (in, taps) along d."""
        groups = len(value) if value.dim() == 3 else 1
        for tensor_map in self.axes.get(name, ()):
            block = tensor_map.blocks[0] if isinstance(tensor_map, BlockMap) else tensor_map
            length = value.shape[-2] if isinstance(block, HeadMap) else block.length
            if block.axis == 1 and length:
                rows = value.reshape(groups, length, value.numel() // (groups * length))
                value = tensor_map.apply_inverse_transpose(rows).reshape(value.shape)
            elif groups > 1 and isinstance(block, AxisMap) and block.order is not None:
                # Groups of rows change places together with their inputs.
                size = len(block.order) // groups
                value = value[(block.order[::size] // size).to(value.device)]
        return value

    def inverse(self) -> ChannelMove:
        axes = {name: tuple(each.inverse() for each in reversed(maps)) for name, maps in self.axes.items()}
        return ChannelMove(axes, self.offsets)


@dataclass(frozen=True, eq=False)
class Translation(Move):
    """Weights shifted: θ′ = θ + δ, each named tensor by its own; tensors not named stay.

    Gradients and labels are as before, and so are layer inputs, to which the shift is orthogonal.
    """

    shifts: Mapping[str, Tensor]

    def point(self, name: str, value: Tensor) -> Tensor:
        return value + self.shifts[name].to(value) if name in self.shifts else value

    def inverse(self) -> Translation:
        return Translation({name: -shift for name, shift in self.shifts.items()})


@dataclass(frozen=True, eq=False)
class ComposedMove:
    """Moves one after another, in the order they are made."""

    moves: tuple[Move, ...]

    def point(self, name: str, value: Tensor) -> Tensor:
        return reduce(lambda moved, move: move.point(name, moved), self.moves, value)

    def covector(self, name: str, value: Tensor) -> Tensor:
        return reduce(lambda moved, move: move.covector(name, moved), self.moves, value)

    def selection(self, name: str, value: Tensor) -> Tensor:
        return reduce(lambda moved, move: move.selection(name, moved), self.moves, value)

    def inputs(self, name: str, value: Tensor) -> Tensor:
        return reduce(lambda moved, move: move.inputs(name, moved), self.moves, value)

    def inverse(self) -> ComposedMove:
        return ComposedMove(tuple(move.inverse() for move in reversed(self.moves)))


class MomentumReset(ComposedMove):
    """A move after which optimizers forget their state. Its inverse, and what it is composed to, reset nothing."""

    def __init__(self, move: Move) -> None:
        super().__init__((move,))


def compose(first: Move | None, second: Move) -> Move:
    """`second` after `first`, as one move; None is no move. Shifts add up, and maps along the same axis are multiplied
    out, so that many moves cost no more than one.
    """
    for move in parts_of(second):
        first = move if first is None else _merged(first, move)
    assert first is not None
    return first


def apply_move(model: nn.Module, move: Move) -> None:
    """Move every parameter and buffer of `model` in place."""
    with torch.no_grad():
        for name, value in model.state_dict(keep_vars=True).items():
            value.copy_(move.point(name, value))


def parts_of(move: Move) -> Iterator[Move]:
    """The moves that a move is composed of, in the order they are made."""
    if isinstance(move, ComposedMove):
        for part in move.moves:
            yield from parts_of(part)
    else:
        yield move


def _merged(first: Move, second: Move) -> Move:
    """`second` after `first` as one move of their kind, or composed where they are of different kinds."""
    if isinstance(first, ComposedMove):
        return ComposedMove((*first.moves[:-1], *parts_of(_merged(first.moves[-1], second))))
    if isinstance(first, Translation) and isinstance(second, Translation):
        added = {name: first.shifts[name] + shift for name, shift in second.shifts.items() if name in first.shifts}
        return Translation({**first.shifts, **second.shifts, **added})
    if isinstance(first, ChannelMove) and isinstance(second, ChannelMove):
        axes = dict(first.axes)
        for name, maps in second.axes.items():
            for tensor_map in maps:
                axes[name] = _appended(axes.get(name, ()), tensor_map)
        return ChannelMove(axes, {**first.offsets, **second.offsets})
    return ComposedMove((first, second))


def _appended(maps: tuple[TensorMap, ...], last: TensorMap) -> tuple[TensorMap, ...]:
    """The maps of one tensor and `last` behind them, multiplied into that of its axis: maps of other axes commute."""
    if isinstance(last, AxisMap) and all(isinstance(earlier, AxisMap) for earlier in maps):
        for i, earlier in enumerate(maps):
            if isinstance(earlier, AxisMap) and earlier.axis == last.axis:
                return (*maps[:i], _product(first=earlier, second=last), *maps[i + 1 :])
    return (*maps, last)


def _product(first: AxisMap, second: AxisMap) -> AxisMap:
    """`second` after `first` along one axis: new entry i is s₂[i] s₁[o₂[i]] times old entry o₁[o₂[i]]."""
    order, scale = second.order, second.scale
    if first.order is not None:
        order = first.order if second.order is None else first.order[second.order]
    if first.scale is not None:
        reordered = first.scale if second.order is None else first.scale[second.order]
        scale = reordered if scale is None else reordered * scale
    return AxisMap(first.axis, order, scale)
