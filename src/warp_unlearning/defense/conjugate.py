"""Conjugation: the method's updates are taken in a moved basis, which nothing in the result remembers.

With T the move and g a gradient in the original's coordinates, a gradient step in the moved basis is, seen from the
original, −η T⁻¹T⁻ᵀ g: every coordinate of the step is rescaled by factors that an attacker does not know. Moving back
at the end, T⁻¹, undoes the move itself exactly; the function changes by the method's updates alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import ClassVar, get_args

import torch
from torch import Tensor, nn

from ..methods.protocol import Task, require
from ..randomness import Streams
from ..symmetry.certificate import Certificate
from ..symmetry.change_of_basis import ChangeOfBasis
from ..symmetry.fixed_move import FixedMove
from ..symmetry.move import Move
from ..symmetry.symmetry import Symmetry, require_symmetry
from ..training.update import Update
from .probing import draw_view
from .step_length import Match, StepLength
from .teleporter import Teleporter


@dataclass(frozen=True)
class Conjugate:
    """Teleport once, let the method take its updates there, teleport back at the end.

    One basis is kept throughout: fresh ones average the factors out. With Δ the step in the moved basis, p = TᵀΔ is
    the plain step in the original's coordinates (for gradient steps with momentum, where Δ = −η T⁻ᵀ Σ g) and q = T⁻¹Δ
    the step that is taken there. `match="length"` scales each update to ‖q‖ = ‖p‖ over all trainable parameters,
    "effect" to ⟨q, p⟩ = ⟨p, p⟩, the same change of the loss to first order, which is the longer of the two. A
    permutation does nothing here: plain optimizers commute with it.
    """

    name: ClassVar[str] = "conjugate"

    symmetry: Symmetry = field(default_factory=lambda: ChangeOfBasis(law="lognormal", spread=0.5))
    match: Match = field(default="effect", kw_only=True)

    def __post_init__(self) -> None:
        require_symmetry(self.symmetry)
        require(self, choices={"match": get_args(Match)})

    def start(self, model: nn.Module, task: Task, *, streams: Streams) -> ConjugateSession:
        """Move the model into the basis."""
        return ConjugateSession(self, model, task, streams)


class ConjugateSession:
    """`Conjugate` during one unlearning."""

    def __init__(self, settings: Conjugate, model: nn.Module, task: Task, streams: Streams) -> None:
        self._model, self._task, self._streams = model, task, streams
        self._symmetry = deepcopy(settings.symmetry)
        self.certificates: list[Certificate] = []
        move = self._teleport(self._symmetry)
        assert move is not None
        self._back = move.inverse()
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._before = [p.detach().clone() for p in self._trained.values()]
        self._length = StepLength(self._back, self._trained, settings.match)

    @torch.no_grad()
    def between(self, update: Update) -> None:
        """Bring the update to its length in the original's coordinates."""
        weights = list[Tensor](self._trained.values())
        if not update.restarts:
            steps = list(torch._foreach_sub(weights, self._before))
            torch._foreach_mul_(steps, self._length.factor(steps).to(steps[0].dtype))
            torch._foreach_copy_(weights, torch._foreach_add(self._before, steps))
        torch._foreach_copy_(self._before, weights)

    def brought_back(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights that were kept during the run, in the original's basis: those of a run that diverged are written to
        disk, and in the moved basis they would give it away.
        """
        return {name: self._back.point(name, value) for name, value in state.items()}

    def finish(self) -> None:
        """Move back."""
        self._teleport(FixedMove(self._symmetry, self._back))

    def _teleport(self, symmetry: Symmetry) -> Move | None:
        task = self._task
        reference = {name: value.detach() for name, value in task.original.state_dict().items()}
        streams = self._streams.of(len(self.certificates))
        view = draw_view(
            task.retain, task.forget, task.validation, symmetry.looks_at, generator=streams.generator("view")
        )
        teleporter = Teleporter(self._model, symmetry, reference)
        move, certificate = teleporter.teleport(view, generator=streams.generator("move"))
        self.certificates.append(certificate)
        return move
