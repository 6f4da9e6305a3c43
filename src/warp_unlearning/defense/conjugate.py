"""Conjugation: the method's updates are taken in a moved basis, which nothing in the result remembers.

With T the move and g a gradient in the original's coordinates, a gradient step in the moved basis is, seen from the
original, −η T⁻¹T⁻ᵀ g: every coordinate of the step is rescaled by factors that an attacker does not know. Moving back
at the end, T⁻¹, undoes the move itself exactly; the function changes by the method's updates alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from ..methods.protocol import Task, require
from ..randomness import Streams
from ..symmetry.base import Probe, Sizes, Symmetry, require_symmetry
from ..symmetry.moves import Move
from ..symmetry.rescaling import ChangeOfBasis
from ..training.update import Update
from .certificate import Certificate
from .teleporter import Teleporter

Match = Literal["length", "effect"]
Linear = Callable[[str, Tensor], Tensor]


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
        self._task, self._streams = task, streams
        self._teleporter = Teleporter.during(task, model, settings.symmetry)
        move = self._teleporter.teleport_on(task, streams)
        assert move is not None, "without bounds no move is taken back"
        self._back = move.inverse()
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._before = [p.detach().clone() for p in self._trained.values()]
        self._plain = _Mapped(self._back.covector, self._trained)
        self._taken = _Mapped(self._back_linearly, self._trained) if settings.match == "length" else None

    @property
    def certificates(self) -> list[Certificate]:
        """That of the way there, and in the end that of the way back."""
        return self._teleporter.certificates

    @torch.no_grad()
    def between(self, update: Update) -> None:
        """Bring the update to its length in the original's coordinates."""
        weights = list[Tensor](self._trained.values())
        if not update.restarts:
            steps = list(torch._foreach_sub(weights, self._before))
            torch._foreach_mul_(steps, self._factor(steps).to(steps[0].dtype))
            torch._foreach_copy_(weights, torch._foreach_add(self._before, steps))
        torch._foreach_copy_(self._before, weights)

    def brought_back(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights that were kept during the run, in the original's basis: the moved one would show in them."""
        return {name: self._back.point(name, value) for name, value in state.items()}

    def finish(self) -> None:
        """Move back."""
        self._teleporter.symmetry = FixedMove(self._teleporter.symmetry, self._back)
        self._teleporter.teleport_on(self._task, self._streams)

    def _back_linearly(self, name: str, value: Tensor) -> Tensor:
        """T⁻¹ without the constant that a translation adds."""
        return self._back.point(name, value) - self._back.point(name, torch.zeros_like(value))

    def _factor(self, steps: list[Tensor]) -> Tensor:
        """‖p‖ / ‖q‖ for "length", ‖p‖² / ⟨p, q⟩ for "effect", where ⟨p, q⟩ = ‖Δ‖²; 1 where there is no step."""
        plain = self._plain.squared(steps)
        ratio = plain / _squared(steps) if self._taken is None else (plain / self._taken.squared(steps)).sqrt()
        return torch.where(ratio.isfinite(), ratio, 1.0)


@dataclass(frozen=True)
class FixedMove:
    """A symmetry whose only move is known, on behalf of the one that it was drawn from."""

    of: Symmetry
    _move: Move = field(repr=False)  # It is a secret.
    looks_at: ClassVar[Sizes] = Sizes()

    def move(self, model: nn.Module, *, generator: torch.Generator, probe: Probe | None = None) -> Move:
        """The move."""
        return self._move


class _Mapped:
    """Lengths of steps through a linear map of every parameter.

    Where the map only rescales entries, which is checked on numbers drawn at random, it is a product with a tensor that
    is computed once: this runs after every update.
    """

    def __init__(self, linear: Linear, parameters: Mapping[str, nn.Parameter]) -> None:
        self._linear, self._names = linear, list(parameters)
        fields = [_field(linear, name, p) for name, p in parameters.items()]
        self._fields = {i: field for i, field in enumerate(fields) if field is not None}

    def squared(self, steps: list[Tensor]) -> Tensor:
        """Σ ‖·‖² of the mapped steps in float64, without reading it."""
        others = [i for i in range(len(steps)) if i not in self._fields]
        mapped = [self._linear(self._names[i], steps[i]) for i in others]
        if self._fields:
            mapped += torch._foreach_mul([steps[i] for i in self._fields], [*self._fields.values()])
        return _squared(mapped)


def _squared(tensors: list[Tensor]) -> Tensor:
    return torch.stack(torch._foreach_norm(tensors)).double().square().sum()


def _field(linear: Linear, name: str, p: nn.Parameter) -> Tensor | None:
    """What the map multiplies each entry by, or None where it does more than that."""
    drawn = 1 + torch.rand(p.shape, generator=Streams(0).generator(name), dtype=torch.float64).to(p.device)
    field = linear(name, torch.ones_like(drawn))
    return field.to(p.dtype) if torch.allclose(linear(name, drawn), field * drawn, rtol=1e-12, atol=0) else None
