"""*filtered*: the difference where the original's gradients lie and the unlearned model's do not.

For each parameter, with U_org and U_u orthonormal bases of the leading directions of probe gradients at both models,
those that hold `energy` of them: Π_org Π_u⊥ Δθ, first out of the one and then into the other. A probe gradient has as
many coordinates as the parameter, and there are few of them, so both bases come from the Gram matrix of the probes.
Since Δθ ≈ −η(g_r − α g_f), the forget gradient stands in Δθ with a positive sign, in −Δθ/η with a negative one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ...errors import InputError
from ...linalg.subspace import SecondMoment, project_out
from ..undo.base import Held, Undo, Weights, checked_state, undone_model, with_shared_names
from ..undo.probes import single_gradients

# Examples whose gradients are taken at once.
_CHUNK = 20


@dataclass(frozen=True)
class SubspaceFilter:
    """Keeps of the difference what `points` probe gradients of the original span and those of the unlearned do not."""

    name: ClassVar[str] = "filtered"

    energy: float = 0.9
    points: int = 100

    def __post_init__(self) -> None:
        if not 0 < self.energy <= 1:
            raise InputError(f"the energy of the filter is {self.energy}; it must be above 0 and at most 1")
        if self.points < 1:
            raise InputError(f"the filter has {self.points} probe points; give at least 1")

    def prepared(self, held: Held) -> Undo:
        """Decompose the original's gradients."""
        if len(held.y) < self.points:
            raise InputError(
                f"the filter asks for {self.points} probes and there are {len(held.y)}; give at least as many"
            )
        before = dict(self._bases(held, held.model))

        def undo(unlearned: Weights) -> dict[str, Tensor]:
            found, origin = checked_state(held, unlearned), held.weights
            after = undone_model(held.model, unlearned).eval()
            for name, theirs in self._bases(held, after):
                kept = project_out((found[name] - origin[name]).flatten(), theirs)
                inside = before[name] @ (before[name].mT @ kept)
                found[name] = origin[name] + inside.reshape(origin[name].shape)
            return with_shared_names(held, found)

        return undo

    def _bases(self, held: Held, model: nn.Module) -> Iterator[tuple[str, Tensor]]:
        """A basis (d, k) for each parameter."""
        parts = [
            single_gradients(model, x, y)
            for x, y in zip(*(torch.split(t[: self.points], _CHUNK) for t in (held.x, held.y)), strict=True)
        ]
        for name in held.parameters:
            moment = SecondMoment(torch.float64)
            moment.add(torch.cat([part.pop(name).flatten(1) for part in parts]).mT[None])
            yield name, moment.leading(self.energy).basis[0]
