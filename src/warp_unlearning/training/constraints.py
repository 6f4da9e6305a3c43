"""Hard limits on what an optimizer step may move: the whole step, weight decay and momentum included.

A constraint acts on the step already taken, by comparing the weights with those before it. It limits the *step*, never
the value: a teleport may move a weight that the method may not. Methods make constraints, `Stepper` applies them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from ..linalg.subspace import orthonormal, project_out
from ..symmetry.layer_inputs import InputBasis
from ..symmetry.moves import Move


class Constraint(Protocol):
    """Undoes the part of a step that is not allowed."""

    def limit(self, name: str, after: Tensor, before: Tensor) -> Tensor:
        """Undo the part of the step after − before that is not allowed. Returns the limited weights; they may be the
        tensor `after` itself, changed in place.
        """

    def limit_gradient(self, name: str, gradient: Tensor) -> Tensor:
        """The part of a gradient that the step may use."""

    def carry(self, move: Move) -> None:
        """Transform the limits by a move that was made to the weights."""


class Mask:
    """Only the entries marked True in `movable` may move; the others, True in `frozen`, stay bit-identical."""

    def __init__(self, movable: Mapping[str, Tensor]) -> None:
        self.movable = {name: mask.clone() for name, mask in movable.items()}
        self.frozen = _inverted(self.movable)

    def limit(self, name: str, after: Tensor, before: Tensor) -> Tensor:
        return torch.where(self.movable[name], after, before, out=after)

    def limit_gradient(self, name: str, gradient: Tensor) -> Tensor:
        return gradient * self.movable[name]

    def carry(self, move: Move) -> None:
        """Reorder the masks, so that every weight keeps its own limit wherever the move puts it."""
        # In place, since a captured step refers to these tensors by their addresses.
        for name, mask in self.movable.items():
            mask.copy_(move.selection(name, mask))
        self.frozen = _inverted(self.movable)


def _inverted(masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: ~mask for name, mask in masks.items()}


class InputComplement:
    """Each weight moves only in directions orthogonal to its layer's inputs; parameters without a basis stay.

    `bases` are by the name of a weight, which moves without its bias.
    """

    def __init__(self, bases: Mapping[str, InputBasis]) -> None:
        # Copies, since `carry` changes them in place.
        self.bases = {
            name: replace(basis, basis=basis.basis.clone(), reached=basis.reached.clone())
            for name, basis in bases.items()
        }

    def __contains__(self, name: object) -> bool:
        return name in self.bases

    def limit(self, name: str, after: Tensor, before: Tensor) -> Tensor:
        """The weights after the projected step."""
        if name not in self:
            return before
        return before + self.limit_gradient(name, after - before)

    def limit_gradient(self, name: str, gradient: Tensor) -> Tensor:
        """The gradient without its part in the span of the layer's inputs; zero for a parameter without a basis."""
        if name not in self:
            return torch.zeros_like(gradient)
        basis = self.bases[name].basis
        rows = gradient.reshape(len(basis), -1, basis.shape[1])
        return project_out(rows, basis).reshape(gradient.shape)

    def carry(self, move: Move) -> None:
        """Transform the bases to those of the moved layers' inputs, and make them orthonormal again."""
        for name, basis in self.bases.items():
            moved = move.inputs(name, basis.basis)
            if moved is not basis.basis:
                # In place, since a captured step refers to these tensors by their addresses.
                reached = move.inputs(name, basis.reached[..., None].to(moved))
                basis.basis.copy_(orthonormal(moved))
                basis.reached.copy_(reached[..., 0] != 0)
