"""How long an update in a moved basis is in the original's coordinates, and by what factor to scale it.

With T the move and Δ the step in the moved basis, p = TᵀΔ is the step that plain gradient descent takes in the
original's coordinates and q = T⁻¹Δ the one that is taken there. Their inner product needs neither: ⟨p, q⟩ = ‖Δ‖².
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from ..symmetry.move import Move

Match = Literal["length", "effect"]


class StepLength:
    """Factors for the updates of the given parameters, whose way back to the original's coordinates is `back`.

    Where T only rescales entries, which is checked on numbers drawn at random, both maps are products with a tensor
    that is computed once: this runs after every update, and few and large operations are what a GPU wants.
    """

    def __init__(self, back: Move, parameters: dict[str, nn.Parameter], match: Match) -> None:
        self._back, self._match = back, match
        self._names = list(parameters)
        fields = {name: _fields(back, name, p) for name, p in parameters.items()}
        self._diagonal = [i for i, name in enumerate(self._names) if fields[name] is not None]
        self._general = [i for i, name in enumerate(self._names) if fields[name] is None]
        known = [found for found in fields.values() if found is not None]
        self._plain, self._taken = [f[0] for f in known], [f[1] for f in known]

    def factor(self, steps: list[Tensor]) -> Tensor:
        """‖p‖ / ‖q‖ for "length", ‖p‖² / ⟨p, q⟩ for "effect", as a tensor without axes; 1 where there is no step."""
        plain = _squared(self._mapped(steps, self._plain, covector=True))
        if self._match == "effect":
            ratio = plain / _squared(steps)
        else:
            ratio = (plain / _squared(self._mapped(steps, self._taken, covector=False))).sqrt()
        return torch.where(ratio.isfinite(), ratio, torch.ones_like(ratio))

    def _mapped(self, steps: list[Tensor], fields: list[Tensor], *, covector: bool) -> list[Tensor]:
        found: list[Tensor] = []
        if fields:
            found += torch._foreach_mul([steps[i] for i in self._diagonal], fields)
        for i in self._general:
            name, step = self._names[i], steps[i]
            found.append(self._back.covector(name, step) if covector else _linear(self._back, name, step))
        return found


def _squared(tensors: list[Tensor]) -> Tensor:
    """Σ ‖·‖² in float64, without reading it."""
    return torch.stack(torch._foreach_norm(tensors)).double().square().sum()


def _linear(move: Move, name: str, value: Tensor) -> Tensor:
    """The linear part of where a move takes points."""
    return move.point(name, value) - move.point(name, torch.zeros_like(value))


def _fields(back: Move, name: str, p: nn.Parameter) -> tuple[Tensor, Tensor] | None:
    """What Tᵀ and T⁻¹ multiply each entry by, or None where they do more than that."""
    one = torch.ones_like(p, dtype=torch.float64)
    generator = torch.Generator(p.device).manual_seed(0)
    drawn = torch.empty_like(one).uniform_(1, 2, generator=generator)
    plain, taken = back.covector(name, one), _linear(back, name, one)
    same = torch.allclose(back.covector(name, drawn), plain * drawn, rtol=1e-12, atol=0) and torch.allclose(
        _linear(back, name, drawn), taken * drawn, rtol=1e-12, atol=0
    )
    return (plain.to(p.dtype), taken.to(p.dtype)) if same else None
