"""Conjugation: the method takes its updates in a moved basis, of which the result keeps no trace.

With T the move and g a gradient in the original's coordinates, a gradient step in the moved basis is −η T⁻¹T⁻ᵀ g in the
original's: every coordinate of the step is rescaled by a factor that an attacker does not know. The move back at the
end, T⁻¹, undoes the move exactly, so the function changes by the method's updates alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from ..methods.base import Task, require
from ..randomness import Streams
from ..symmetry.base import Probe, Sizes, Symmetry, option, require_symmetry
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

    One basis serves the whole run: fresh ones would average the factors out. With Δ the step in the moved basis,
    p = TᵀΔ is the plain step in the original's coordinates (for gradient steps with momentum, where Δ = −η T⁻ᵀ Σ g) and
    q = T⁻¹Δ the step that is taken. `match="length"` scales each update to ‖q‖ = ‖p‖ over all trainable parameters,
    "effect" to ⟨q, p⟩ = ⟨p, p⟩, the same change of the loss to first order, which is the longer of the two. A
    permutation has no effect: plain optimizers commute with it.
    """

    name: ClassVar[str] = "conjugate"

    symmetry: Symmetry = field(default_factory=lambda: ChangeOfBasis(law="lognormal", spread=0.5))
    _: KW_ONLY
    match: Match = option(
        "effect", "length of an update: that of the plain one (length), or the same effect on the loss (effect)"
    )

    def __post_init__(self) -> None:
        require_symmetry(self.symmetry)
        require(self, choices={"match": get_args(Match)})

    def start(self, model: nn.Module, task: Task, *, streams: Streams) -> ConjugateSession:
        return ConjugateSession(self, model, task, streams)


class ConjugateSession:
    """`Conjugate` during one unlearning: teleports at the start, rescales every step, and moves back at the end."""

    def __init__(self, settings: Conjugate, model: nn.Module, task: Task, streams: Streams) -> None:
        self._task, self._streams = task, streams
        self._teleporter = Teleporter.during(task, model, settings.symmetry)
        move = self._teleporter.teleport_on(task, streams)
        assert move is not None, "without bounds no move is taken back"
        self._back = move.inverse()
        # `_before` holds the weights before the next update; the two functions measure steps for `_step_rescale`.
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._weights = list[Tensor](trained.values())
        self._before = [p.detach().clone() for p in self._weights]
        self._plain_squared = _squared_length_after(self._back.covector, trained)
        matches_length = settings.match == "length"
        self._taken_squared = _squared_length_after(self._back_linearly, trained) if matches_length else None

    @property
    def certificates(self) -> list[Certificate]:
        return self._teleporter.certificates

    @torch.no_grad()
    def between(self, update: Update) -> None:
        """Rescale the step that was just taken, in place, to match that of the undefended method. No move is made."""
        if not update.restarts:
            steps = list(torch._foreach_sub(self._weights, self._before))
            torch._foreach_mul_(steps, self._step_rescale(steps).to(steps[0].dtype))
            torch._foreach_copy_(self._weights, torch._foreach_add(self._before, steps))
        torch._foreach_copy_(self._before, self._weights)

    def brought_back(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: self._back.point(name, value) for name, value in state.items()}

    def finish(self) -> None:
        """Teleport back by the inverse of the first move, which is certified like any other."""
        self._teleporter.symmetry = FixedMove(self._teleporter.symmetry, self._back)
        self._teleporter.teleport_on(self._task, self._streams)

    def _back_linearly(self, name: str, value: Tensor) -> Tensor:
        """A step of the tensor `name` moved back: as a point is, without the constant that a translation adds."""
        return self._back.point(name, value) - self._back.point(name, torch.zeros_like(value))

    def _step_rescale(self, steps: list[Tensor]) -> Tensor:
        """The factor that matches this step q to the undefended method's step p, both in the original's coordinates.

        For "length" they become equally long, ‖p‖ / ‖q‖. For "effect" they change the loss equally to first order,
        ‖p‖² / ⟨p, q⟩, where ⟨p, q⟩ = ‖Δ‖² for the step Δ in the moved basis. It is 1 for a step of zeros.
        """
        plain = self._plain_squared(steps)
        if self._taken_squared is None:  # match="effect"
            ratio = plain / _squared_length(steps)
        else:
            ratio = (plain / self._taken_squared(steps)).sqrt()
        return torch.where(ratio.isfinite(), ratio, 1.0)


@dataclass(frozen=True)
class FixedMove:
    """A symmetry with one fixed move, so that a `Teleporter` makes and certifies it; it came from the symmetry `of`."""

    of: Symmetry
    _move: Move = field(repr=False)  # It is a secret.
    looks_at: ClassVar[Sizes] = Sizes()

    def move(self, model: nn.Module, *, generator: torch.Generator, probe: Probe | None = None) -> Move:
        return self._move


def _squared_length(tensors: list[Tensor]) -> Tensor:
    return torch.stack(torch._foreach_norm(tensors)).double().square().sum()


def _squared_length_after(linear: Linear, parameters: Mapping[str, nn.Parameter]) -> Callable[[list[Tensor]], Tensor]:
    """Prepare a function that gives the squared length, in float64, of steps (one a parameter) after a linear map.

    It runs after every update. So a map found to do no more than rescale entries is replaced by a product.
    """
    names, factors = list(parameters), {}
    for i, (name, p) in enumerate(parameters.items()):
        random = 1 + torch.rand(p.shape, generator=Streams(0).generator(name), dtype=torch.float64).to(p.device)
        factor = linear(name, torch.ones_like(random))
        if torch.allclose(linear(name, random), factor * random, rtol=1e-12, atol=0):
            factors[i] = factor.to(p.dtype)

    def squared_length(steps: list[Tensor]) -> Tensor:
        """‖L(steps)‖² for the map L, by factors where that is the same."""
        mapped = [linear(names[i], step) for i, step in enumerate(steps) if i not in factors]
        if factors:
            mapped += torch._foreach_mul([steps[i] for i in factors], [*factors.values()])
        return _squared_length(mapped)

    return squared_length
