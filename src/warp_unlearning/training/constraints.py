"""Hard limits on what an optimizer step may move: the whole step, weight decay and momentum included.

A constraint acts on the step already taken, by comparing the weights with those before it. It limits the *step*, never
the value: a teleport may move a weight that the method may not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from ..linalg.subspace import project_out
from ..symmetry.move import Move


class Constraint(Protocol):
    """Takes back the part of a step that is not allowed."""

    def limit(self, name: str, after: Tensor, before: Tensor) -> Tensor:
        """The weights `after` the step, with the part of after − before that is not allowed taken back; these may be
        `after` itself, changed.
        """

    def limit_gradient(self, name: str, gradient: Tensor) -> Tensor:
        """The part of a gradient that the step may use."""

    def carry(self, move: Move) -> None:
        """Follow the weights across a move."""


class Mask:
    """Only the entries marked True in `movable` may move; the others, True in `frozen`, stay bit-identical."""

    def __init__(self, movable: Mapping[str, Tensor]) -> None:
        self.movable = {name: mask.clone() for name, mask in movable.items()}
        self.frozen = _inverted(self.movable)

    def limit(self, name: str, after: Tensor, before: Tensor) -> Tensor:
        """`after` where movable, `before` elsewhere, in place."""
        return torch.where(self.movable[name], after, before, out=after)

    def limit_gradient(self, name: str, gradient: Tensor) -> Tensor:
        """Zero where the weight may not move."""
        return gradient * self.movable[name]

    def carry(self, move: Move) -> None:
        """Each entry keeps its permission wherever the move puts it."""
        # In place, since a captured step knows these tensors by where they are.
        for name, mask in self.movable.items():
            mask.copy_(move.selection(name, mask))
        self.frozen = _inverted(self.movable)


def _inverted(masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: ~mask for name, mask in masks.items()}


class InputComplement:
    """Each weight moves only in directions orthogonal to its layer's input basis; parameters without a basis stay.

    A step ΔW, flattened to (out, d), becomes ΔW − (ΔW B) Bᵀ with B the (d, k) basis of the inputs to protect. Where a
    kernel has taps that meet nothing but padding, `met` names the others, int64, and B is of the d coordinates of those
    alone: what the rest does is nobody's response.
    """

    def __init__(self, bases: Mapping[str, Tensor], *, met: Mapping[str, Tensor] | None = None) -> None:
        self._projections = {name: _Projection(basis.clone(), (met or {}).get(name)) for name, basis in bases.items()}

    def __contains__(self, name: object) -> bool:
        return name in self._projections

    @property
    def bases(self) -> dict[str, Tensor]:
        """The bases, by name of the weight, as they are now."""
        return {name: projection.basis for name, projection in self._projections.items()}

    def limit(self, name: str, after: Tensor, before: Tensor) -> Tensor:
        """`before` plus the projected step."""
        if name not in self:
            return before
        return before + self.limit_gradient(name, after - before)

    def limit_gradient(self, name: str, gradient: Tensor) -> Tensor:
        """The projected gradient, zero for parameters without a basis."""
        return self._projections[name](gradient) if name in self else torch.zeros_like(gradient)

    def carry(self, move: Move) -> None:
        """Bases of the moved inputs, made orthonormal again."""
        for name, projection in self._projections.items():
            moved = move.inputs(name, projection.basis)
            if moved is not projection.basis:
                projection.follow(torch.linalg.qr(moved)[0])


class _Projection:
    """Weights (out, in, ...) less the part of each row that lies in the span of `basis` (d, k), d = in · taps.

    Where the basis has most of the dimensions, the part is kept that lies in its complement: the same, for less.
    """

    def __init__(self, basis: Tensor, taps: Tensor | None) -> None:
        self.basis, self._taps = basis, taps
        most = 2 * basis.shape[1] > basis.shape[0]
        self._normals = _complement(basis) if most else None

    def __call__(self, weights: Tensor) -> Tensor:
        if self._taps is None:
            return self._rows(weights.flatten(1)).reshape(weights.shape)
        whole = weights.flatten(2)
        some = whole.index_select(2, self._taps)
        rows = self._rows(some.flatten(1))
        return whole.index_copy(2, self._taps, rows.reshape(some.shape)).reshape(weights.shape)

    def follow(self, basis: Tensor) -> None:
        """Go on with another basis, in place, since a captured step knows these tensors by where they are."""
        self.basis.copy_(basis)
        if self._normals is not None:
            self._normals.copy_(_complement(basis))

    def _rows(self, rows: Tensor) -> Tensor:
        if self._normals is None:
            return project_out(rows, self.basis)
        return (rows @ self._normals) @ self._normals.mT


def _complement(basis: Tensor) -> Tensor:
    """An orthonormal basis (d, d − k) of what is orthogonal to the columns (d, k)."""
    whole: Tensor = torch.linalg.qr(basis, mode="complete")[0]
    return whole[:, basis.shape[1] :].clone()
