"""A principal subspace that follows its second moment as the model changes, without an eigendecomposition each time.

The first second moment is decomposed exactly. Later ones take rounds of subspace iteration from the basis before,
B ← orth(C B), which converges to the leading subspace at the rate of the eigenvalue gap, and starts next to it because
a network's inputs change slowly. With Z an orthonormal basis of the complement of B, the complement of C B is spanned
by C⁻¹ Z: a subspace of most dimensions is cheaper to follow by its complement, with one Cholesky factor of C and
triangular solves of few columns. Where the subspace no longer captures the energy asked for, its rank is chosen anew.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InputError
from .co_subspace import AnySubspace, CoSubspace
from .held_energy import held_by, missed_by
from .iteration import Span, iterate_inverse
from .orthonormal import orthonormal
from .subspace import Rule, Subspace, rank_for, restricted

# Above this share of the dimensions the complement is faster: d³/3 + 2 d² m + 2 d m² operations for its m = d − k
# directions, against about d² k + 2 d k², which are of a kind that processors are better at.
_COMPLEMENT_FROM = 0.62


class TrackedSubspace:
    """The subspace that holds `fraction` of a second moment, refreshed by `rounds` of subspace iteration.

    `slack` is by what share the missed energy may exceed that of the last choice of the rank before the rank is chosen
    again. A fraction of 1 leaves nothing to miss, and is decomposed exactly every time.
    """

    def __init__(self, fraction: float, *, rule: Rule = "energy", rounds: int = 1, slack: float = 0.05) -> None:
        if rounds < 1:
            raise InputError(f"rounds is {rounds}; at least one round of subspace iteration is needed")
        if not slack >= 0:
            raise InputError(f"slack is {slack}; the share by which missed energy may grow cannot be negative")
        rank_for(torch.ones(1), fraction, rule=rule)
        self.fraction, self.rule, self.rounds, self.slack = fraction, rule, rounds, slack
        self.decompositions = 0
        self._alive = torch.empty(0, dtype=torch.bool)
        self._span: Span | None = None
        self._normals: Tensor | None = None
        self._aim = 1 - fraction

    def refresh(self, second_moment: Tensor) -> AnySubspace:
        """The subspace for the second moment as it is now, shape (d, d).

        The energy it captures is exact after a decomposition and where there are few directions, and else estimated
        from random probes, to about a fiftieth of what is missed.
        """
        moment = second_moment.to(torch.promote_types(second_moment.dtype, torch.float32))
        alive = moment.diagonal() > 0
        followed = None
        if self.fraction < 1 and len(alive) == len(self._alive):
            self._alive = self._alive.to(alive.device)
            self._admit(alive)
            followed = self._follow(restricted(moment, self._alive))
        return self._decompose(moment, alive) if followed is None else followed

    def begin(self, eigenvalues: Tensor, eigenvectors: Tensor, alive: Tensor) -> AnySubspace:
        """The subspace by an eigendecomposition, values ascending, of what a second moment is in the coordinates marked
        in `alive`, bool (d); later refreshes go on from it.
        """
        values = eigenvalues.double().flip(0)
        # Below that they are rounding errors, of which thousands would add up.
        values = torch.where(values > 8 * torch.finfo(eigenvalues.dtype).eps * values[:1], values, 0.0)
        rank = rank_for(values, self.fraction, rule=self.rule)
        rest, total = len(values) - rank, float(values.sum())
        captured = float(values[:rank].sum()) / total if total else 0.0
        if rank > _COMPLEMENT_FROM * len(values):
            return self._keep(alive, None, eigenvectors[:, :rest].clone(), captured)
        return self._keep(alive, Span(eigenvectors[:, rest:].flip(1), values[:rank] / total), None, captured)

    def adopt(self, subspace: Subspace, alive: Tensor) -> AnySubspace:
        """Go on from a subspace found elsewhere, within the coordinates marked in `alive`, bool (d)."""
        within = subspace.basis[alive].to(torch.promote_types(subspace.basis.dtype, torch.float32))
        rank = within.shape[1]
        if rank > _COMPLEMENT_FROM * len(within):
            return self._keep(alive, None, torch.linalg.qr(within, mode="complete").Q[:, rank:], subspace.captured)
        return self._keep(alive, Span(within), None, subspace.captured)

    def _keep(self, alive: Tensor, span: Span | None, normals: Tensor | None, captured: float) -> AnySubspace:
        self._alive, self._span, self._normals = alive, span, normals
        self._aim = 1 - self.fraction if self.rule == "energy" else 1 - captured
        return self._found(captured)

    def _found(self, captured: float) -> AnySubspace:
        if self._normals is not None:
            return CoSubspace(self._widened(self._normals), self._alive, captured)
        assert self._span is not None
        return Subspace(self._widened(self._span.basis), captured)

    def _follow(self, moment: Tensor) -> AnySubspace | None:
        total = float(moment.diagonal().sum())
        if not total > 0:
            return None
        if self._normals is not None:
            return self._follow_normals(moment, self._normals.to(moment), total)
        assert self._span is not None
        self._span.iterate(moment, rounds=self.rounds)
        captured = 1 - missed_by(moment, self._span.basis) / total
        return self._found(captured) if self._enough(captured, moment) else None

    def _follow_normals(self, moment: Tensor, normals: Tensor, total: float) -> AnySubspace | None:
        turned = iterate_inverse(moment, normals, rounds=self.rounds)
        if turned is None:
            return None
        self._normals, missed = turned, held_by(moment, turned)
        if not self._enough(1 - missed / total, moment):
            self._normals, missed = _least_of(moment, turned, self._aim * total)
        return self._found(1 - missed / total)

    def _enough(self, captured: float, moment: Tensor) -> bool:
        rounding = len(moment) * torch.finfo(moment.dtype).eps
        return captured >= 1 - (1 + self.slack) * self._aim - rounding

    def _decompose(self, moment: Tensor, alive: Tensor) -> AnySubspace:
        self.decompositions += 1
        return self.begin(*_eigh(restricted(moment, alive)), alive)

    def _widened(self, columns: Tensor) -> Tensor:
        """Columns over the coordinates that are alive as columns over all, with zeros in the others."""
        if len(columns) == len(self._alive):
            return columns
        wide = columns.new_zeros(len(self._alive), columns.shape[1])
        wide[self._alive] = columns
        return wide

    def _admit(self, alive: Tensor) -> None:
        """Make room for coordinates that energy has reached since; what is unknown of them is orthogonal to all."""
        union = self._alive | alive
        fresh = union & ~self._alive
        if not bool(fresh.any()):
            return
        if self._span is not None:
            self._span.basis = self._widened(self._span.basis)[union]
        if self._normals is not None:
            axes = torch.eye(len(alive), dtype=self._normals.dtype, device=alive.device)[:, fresh]
            self._normals = torch.cat([self._widened(self._normals), axes], dim=1)[union]
        self._alive = union


def _least_of(second_moment: Tensor, normals: Tensor, energy: float) -> tuple[Tensor, float]:
    """The largest part of span(Z) that holds at most `energy`, by the eigenvectors of Zᵀ C Z, and what it holds."""
    values, vectors = _eigh(normals.mT @ (second_moment @ normals))
    held = values.double().clamp(min=0).cumsum(0)
    kept = int((held <= energy).sum())
    return orthonormal(normals @ vectors[:, :kept]), float(held[kept - 1]) if kept else 0.0


def _eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, ascending, and eigenvectors, in the type of the matrix."""
    try:
        values, vectors = torch.linalg.eigh(matrix)
    except RuntimeError:
        # It does not always converge in float32.
        values, vectors = torch.linalg.eigh(matrix.double())
    return values.to(matrix.dtype), vectors.to(matrix.dtype)
