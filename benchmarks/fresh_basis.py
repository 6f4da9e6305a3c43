"""Conjugation with a basis of its own for every update, which averages the factors out: a control for `Conjugate`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from warp_unlearning.defense.certificate import Certificate
from warp_unlearning.methods.base import Task
from warp_unlearning.randomness import Streams
from warp_unlearning.symmetry.moves import apply_move
from warp_unlearning.symmetry.rescaling import ChangeOfBasis
from warp_unlearning.training.update import Update


@dataclass(frozen=True)
class FreshBasis:
    """Each update is taken in a new basis, scaled to the first-order effect of the plain one, and brought back.

    For methods that keep nothing in weight coordinates; it leaves no certificates.
    """

    name: ClassVar[str] = "fresh basis"

    symmetry: ChangeOfBasis

    def start(self, model: nn.Module, task: Task, *, streams: Streams) -> FreshBasisSession:
        """Move the model into the first basis."""
        return FreshBasisSession(self.symmetry, model, streams.generator("bases"))


class FreshBasisSession:
    """`FreshBasis` during one unlearning."""

    def __init__(self, symmetry: ChangeOfBasis, model: nn.Module, generator: torch.Generator) -> None:
        self._symmetry, self._model, self._generator = symmetry, model, generator
        self.certificates: list[Certificate] = []
        self._begin()

    def between(self, update: Update) -> None:
        """End this basis, with the step θ ← θ + q ⟨p, p⟩ / ⟨q, p⟩ where q = T⁻¹Δ and p = TᵀΔ, and begin another."""
        back = self._move.inverse()
        steps = {name: p.detach() - self._start[name] for name, p in self._model.named_parameters()}
        plain = {name: back.covector(name, step) for name, step in steps.items()}
        taken = {name: back.point(name, p.detach()) - self._origin[name] for name, p in self._model.named_parameters()}
        factor = _inner(plain, plain) / _inner(taken, plain)
        apply_move(self._model, back)
        with torch.no_grad():
            for name, p in self._model.named_parameters():
                p.copy_(self._origin[name] + factor * taken[name])
        self._begin()

    def finish(self) -> None:
        """Leave the basis that was begun after the last update."""
        apply_move(self._model, self._move.inverse())

    def _begin(self) -> None:
        self._origin = self._weights()
        self._move = self._symmetry.move(self._model, generator=self._generator)
        apply_move(self._model, self._move)
        self._start = self._weights()

    def _weights(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self._model.named_parameters()}


def _inner(one: dict[str, Tensor], other: dict[str, Tensor]) -> Tensor:
    return torch.stack([(one[name] * other[name]).sum() for name in one]).sum()
