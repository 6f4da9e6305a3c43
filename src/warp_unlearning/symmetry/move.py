"""A move: an invertible map of a network's weights that keeps its function, and how everything else follows it.

Under θ′ = T(θ), with T affine and acting on each tensor by itself:

- a *point* (weights, an anchor, a snapshot) becomes T(point);
- a *covector* (a gradient, a momentum buffer that sums gradients) becomes T⁻ᵀ(covector), so that the loss changes along
a
  step by the same amount in either coordinates;
- the *inputs* of a layer whose weight W became A W B become B⁻¹ inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from .head_map import HeadMap


class Move(Protocol):
    """What a method that keeps state in weight coordinates needs to carry it across a teleport. Names are `state_dict`
    keys.
    """

    def point(self, name: str, value: Tensor) -> Tensor:
        """Where the weights `value` of tensor `name` lie after the move."""

    def covector(self, name: str, value: Tensor) -> Tensor:
        """A gradient with respect to tensor `name`, seen after the move."""

    def selection(self, name: str, value: Tensor) -> Tensor:
        """A label on each entry of tensor `name` (a mask, say), following the entries wherever they go."""

    def inputs(self, name: str, value: Tensor) -> Tensor:
        """Columns of layer inputs, shape (d, k) or (groups, d, k), of the layer whose weight is `name`; directions
        only, not orthonormal.
        """

    def inverse(self) -> Move:
        """The move back."""


class TensorMap(Protocol):
    """A linear map of one tensor, which is one part of a move."""

    def apply(self, value: Tensor) -> Tensor:
        """Weights after the map."""

    def apply_inverse_transpose(self, value: Tensor) -> Tensor:
        """Gradients after the map."""

    def reorder(self, value: Tensor) -> Tensor:
        """Labels of entries after the map: reordered where it reorders, and nothing else."""

    def inverse(self) -> TensorMap:
        """The map back."""


@dataclass(frozen=True, eq=False)
class AxisMap:
    """One axis of a tensor reordered, then rescaled: new entry i is `scale[i]` times old entry `order[i]`."""

    axis: int
    order: Tensor | None = None
    scale: Tensor | None = None

    @property
    def length(self) -> int:
        """Entries along the axis."""
        given = self.order if self.order is not None else self.scale
        return 0 if given is None else len(given)

    def apply(self, value: Tensor) -> Tensor:
        """The tensor with this axis reordered and rescaled."""
        value = self.reorder(value)
        return value if self.scale is None else value * self._shaped(value)

    def apply_inverse_transpose(self, value: Tensor) -> Tensor:
        """The map that gradients follow: the same order, divided by the scale."""
        value = self.reorder(value)
        return value if self.scale is None else value / self._shaped(value)

    def reorder(self, value: Tensor) -> Tensor:
        """The tensor with this axis reordered alone."""
        return value if self.order is None else value.index_select(self.axis, self.order.to(value.device))

    def inverse(self) -> AxisMap:
        """The map back."""
        back = None if self.order is None else torch.argsort(self.order)
        if self.scale is None:
            return AxisMap(self.axis, back, None)
        return AxisMap(self.axis, back, 1 / (self.scale if back is None else self.scale[back]))

    def _shaped(self, value: Tensor) -> Tensor:
        assert self.scale is not None
        shape = [1] * value.dim()
        shape[self.axis] = -1
        return self.scale.to(device=value.device, dtype=value.dtype).reshape(shape)


@dataclass(frozen=True, eq=False)
class BlockMap:
    """Rows in equal blocks, each through a map of its own: the kernel of a grouped convolution, whose axis 1 is another
    part of the input in every block.
    """

    blocks: tuple[AxisMap, ...]

    def apply(self, value: Tensor) -> Tensor:
        """The tensor with each block reordered and rescaled."""
        return self._each(value, AxisMap.apply)

    def apply_inverse_transpose(self, value: Tensor) -> Tensor:
        """The map that gradients follow."""
        return self._each(value, AxisMap.apply_inverse_transpose)

    def reorder(self, value: Tensor) -> Tensor:
        """The tensor with each block reordered alone."""
        return self._each(value, AxisMap.reorder)

    def inverse(self) -> BlockMap:
        """The map back."""
        return BlockMap(tuple(block.inverse() for block in self.blocks))

    def _each(self, value: Tensor, how: Callable[[AxisMap, Tensor], Tensor]) -> Tensor:
        parts = value.chunk(len(self.blocks))
        return torch.cat([how(block, part) for block, part in zip(self.blocks, parts, strict=True)])


@dataclass(frozen=True, eq=False)
class ChannelMove:
    """Hidden channels permuted and rescaled: each named tensor through its axes; tensors not named stay.

    `offsets` holds the ε of running variances: they become τ²(v + ε) − ε, exact including ε.
    """

    axes: Mapping[str, tuple[TensorMap, ...]]
    offsets: Mapping[str, float] = field(default_factory=dict)

    def point(self, name: str, value: Tensor) -> Tensor:
        """Weights after the move."""
        offset = self.offsets.get(name, 0.0)
        if offset == 0.0:
            return self._each(name, value, lambda m, v: m.apply(v))
        return self._each(name, value + offset, lambda m, v: m.apply(v)) - offset

    def covector(self, name: str, value: Tensor) -> Tensor:
        """Gradients after the move."""
        return self._each(name, value, lambda m, v: m.apply_inverse_transpose(v))

    def selection(self, name: str, value: Tensor) -> Tensor:
        """Labels of entries after the move."""
        return self._each(name, value, lambda m, v: m.reorder(v))

    def inputs(self, name: str, value: Tensor) -> Tensor:
        """Layer inputs after the move, (d, k) or (groups, d, k): axis 1 of the weight, whose taps are laid out
        (in, taps) along d. Groups of rows that trade places take their inputs with them.
        """
        groups = len(value) if value.dim() == 3 else 1
        for axis_map in self.axes.get(name, ()):
            first = axis_map.blocks[0] if isinstance(axis_map, BlockMap) else axis_map
            if isinstance(first, HeadMap) and first.axis == 1:
                rows = value.reshape(groups, *value.shape[-2:])
            elif isinstance(first, AxisMap) and first.axis == 1 and first.length:
                rows = value.reshape(groups, first.length, value.numel() // (groups * first.length))
            else:
                if groups > 1 and isinstance(first, AxisMap) and first.order is not None:
                    size = len(first.order) // groups
                    value = value[(first.order[::size] // size).to(value.device)]
                continue
            value = axis_map.apply_inverse_transpose(rows).reshape(value.shape)
        return value

    def inverse(self) -> ChannelMove:
        """The move back."""
        return ChannelMove(
            {n: tuple(a.inverse() for a in reversed(maps)) for n, maps in self.axes.items()}, self.offsets
        )

    def _each(self, name: str, value: Tensor, how: Callable[[TensorMap, Tensor], Tensor]) -> Tensor:
        for axis_map in self.axes.get(name, ()):
            value = how(axis_map, value)
        return value


@dataclass(frozen=True, eq=False)
class Translation:
    """Weights shifted: θ′ = θ + δ, each named tensor by its own; tensors not named stay.

    Gradients, labels and layer inputs are as before. `scaled` is the same direction at another length.
    """

    shifts: Mapping[str, Tensor]

    def point(self, name: str, value: Tensor) -> Tensor:
        """Weights after the move."""
        return value + self.shifts[name].to(value) if name in self.shifts else value

    def covector(self, name: str, value: Tensor) -> Tensor:
        """Gradients, which a shift leaves as they are."""
        return value

    def selection(self, name: str, value: Tensor) -> Tensor:
        """Labels, which a shift leaves where they are."""
        return value

    def inputs(self, name: str, value: Tensor) -> Tensor:
        """Layer inputs, which a shift orthogonal to them leaves as they are."""
        return value

    def scaled(self, factor: float) -> Translation:
        """θ′ = θ + factor · δ."""
        return Translation({name: factor * shift for name, shift in self.shifts.items()})

    def inverse(self) -> Translation:
        """The move back."""
        return self.scaled(-1.0)


@dataclass(frozen=True, eq=False)
class MomentumReset:
    """A move after which optimizers forget their state; everything else follows the move inside."""

    move: Move

    def point(self, name: str, value: Tensor) -> Tensor:
        """Weights after the move."""
        return self.move.point(name, value)

    def covector(self, name: str, value: Tensor) -> Tensor:
        """Gradients after the move."""
        return self.move.covector(name, value)

    def selection(self, name: str, value: Tensor) -> Tensor:
        """Labels after the move."""
        return self.move.selection(name, value)

    def inputs(self, name: str, value: Tensor) -> Tensor:
        """Layer inputs after the move."""
        return self.move.inputs(name, value)

    def inverse(self) -> Move:
        """The move back, which asks nobody to forget anything."""
        return self.move.inverse()


def apply_move(model: nn.Module, move: Move) -> None:
    """Move every parameter and buffer of `model` in place."""
    with torch.no_grad():
        for name, value in model.state_dict(keep_vars=True).items():
            value.copy_(move.point(name, value))
