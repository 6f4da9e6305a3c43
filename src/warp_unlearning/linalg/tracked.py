"""A principal subspace that follows its second moment as the model changes, without an eigendecomposition each time.

The first second moment is decomposed exactly. Later ones take a few rounds of subspace iteration from the basis before,
B ← orth(C B), which converges to the leading subspace at the rate of the eigenvalue gap, and starts next to it because
a network's inputs change slowly. Where the basis no longer captures the energy asked for, the rank is chosen anew by an
exact decomposition.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InputError
from .orthonormal import orthonormal
from .subspace import Rule, Subspace, principal_subspace


class TrackedSubspace:
    """The subspace that holds `fraction` of a second moment, refreshed by `rounds` of subspace iteration.

    `slack` is how far the captured energy may fall below that of the last exact decomposition before one is made again.
    """

    def __init__(self, fraction: float, *, rule: Rule = "energy", rounds: int = 2, slack: float = 0.002) -> None:
        if rounds < 1:
            raise InputError(f"rounds is {rounds}; at least one round of subspace iteration is needed")
        self.fraction, self.rule, self.rounds, self.slack = fraction, rule, rounds, slack
        self.decompositions = 0
        self._current: Subspace | None = None
        self._target = 0.0

    def refresh(self, second_moment: Tensor) -> Subspace:
        """The subspace for the second moment as it is now, shape (d, d)."""
        if self._current is None or len(self._current.basis) != len(second_moment):
            return self._decompose(second_moment)
        basis = iterate(second_moment, self._current.basis.to(second_moment.dtype), rounds=self.rounds)
        captured = captured_energy(second_moment, basis)
        if not captured >= self._target - self.slack:
            return self._decompose(second_moment)
        self._current = Subspace(basis, captured)
        return self._current

    def _decompose(self, second_moment: Tensor) -> Subspace:
        self.decompositions += 1
        self._current = principal_subspace(second_moment, self.fraction, rule=self.rule)
        self._target = self._current.captured
        return self._current


def iterate(second_moment: Tensor, basis: Tensor, *, rounds: int) -> Tensor:
    """`rounds` of B ← orth(C B), from an orthonormal `basis` (d, k). Directions that C maps to zero stay."""
    for _ in range(rounds):
        image = second_moment @ basis
        dead = image.norm(dim=0) == 0
        basis = orthonormal(torch.where(dead, basis, image))
    return basis


def captured_energy(second_moment: Tensor, basis: Tensor) -> float:
    """tr(Bᵀ C B) / tr(C), the share of the energy inside the span of an orthonormal basis."""
    total = second_moment.diagonal().sum()
    if total <= 0:
        return 0.0
    return float((basis * (second_moment @ basis)).sum() / total)
