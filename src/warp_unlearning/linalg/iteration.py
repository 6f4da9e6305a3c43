"""Rounds of subspace iteration towards the leading eigenvectors of a second moment C (d, d)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from .fine_type import like
from .on_host import on_host
from .orthonormal import TOLERANCE, Doubt, Unproven, doubtful_step, fixed_normal, orthonormal, orthonormal_after

# From this many columns on, those with an eigenvalue of less than so many times the smallest take so many turns.
_MANY = 512
_SMALL = 4.0
_TURNS = 4
_SHIFTS = 5


@dataclass(frozen=True, eq=False)
class Turned:
    """What rounds of iteration came to, if the departure from orthonormal columns proves to be small after each of
    them; `sizes` are the eigenvalues of the columns, as shares, where they are known.
    """

    columns: Tensor
    doubts: tuple[Doubt, ...]
    sizes: Tensor | None = None

    @property
    def doubt(self) -> Tensor:
        """The worst departure of all rounds, not read."""
        return Doubt.measured(self.doubts).max()


class Span:
    """An orthonormal `basis` (d, k) under subspace iteration, with the eigenvalues of its columns where they are known,
    as shares of their sum over all d.

    A round turns a direction the less, and gains the less by it, the closer its eigenvalue is to those left out. So of
    many columns, those within a factor of four of the smallest take turns: a quarter of them is multiplied in each
    round, the others are only kept orthogonal to the rest. Which take turns is decided on the host, by eigenvalues that
    were read: those of this call's earlier rounds come too late.
    """

    def __init__(self, basis: Tensor, shares: Tensor | None = None) -> None:
        self.basis = basis
        self._sizes = None if shares is None else shares.cpu()
        self._turn = 0

    @property
    def takes_turns(self) -> bool:
        """Whether the columns are so many that the eigenvalues of those multiplied decide about the next round."""
        return self.basis.shape[1] >= _MANY

    def iterate(self, second_moment: Tensor, *, rounds: int) -> None:
        """`rounds` of B ← orth(C B). Directions that C maps to zero stay."""
        turned = self.turned(second_moment, rounds=rounds)
        doubt, sizes = float(turned.doubt), None if turned.sizes is None else turned.sizes.cpu()
        if doubt <= TOLERANCE:
            self.accept(turned, sizes)
        else:
            self.mend(turned, sizes, doubt, second_moment)

    def iterate_whole(self, second_moment: Tensor) -> None:
        """One round in which no column waits for its turn."""
        turned = self._turned_by(orthonormal, second_moment, 1, whole=True)
        self.accept(turned, None if turned.sizes is None else turned.sizes.cpu())

    def mend(self, turned: Turned, sizes: Tensor | None, doubt: float, second_moment: Tensor) -> None:
        """`iterate`, after `turned` came to columns that are not orthonormal: those take further steps, or, where a
        factor failed, so that they have another span, the rounds are done again. `sizes` are on the host.
        """
        if doubt < inf:
            self.accept(Turned(orthonormal_after(turned.columns, turned.columns, doubt), ()), sizes)
            return
        again = self._turned_by(orthonormal, second_moment, len(turned.doubts))
        self.accept(again, None if again.sizes is None else again.sizes.cpu())

    def turned(self, second_moment: Tensor, *, rounds: int) -> Turned:
        """What `iterate` would do, by steps that are yet to be judged; nothing is read, and the basis stays."""
        unproven = Unproven()
        turned = self._turned_by(unproven, second_moment, rounds)
        return Turned(turned.columns, tuple(unproven.doubts), turned.sizes)

    def accept(self, turned: Turned, sizes: Tensor | None) -> None:
        """Go on from there; `sizes` are those of `turned`, on the host."""
        self.basis = turned.columns
        self._sizes = sizes

    def grown(self, columns: Tensor, shares: Tensor) -> Span:
        """The same with further columns, orthonormal to all, whose eigenvalues as shares are on the host."""
        sizes = None if self._sizes is None else torch.cat([self._sizes, shares.to(self._sizes)])
        return Span(torch.cat([self.basis, columns.to(self.basis)], dim=1), sizes)

    def _turned_by(
        self, orthonormalised: Callable[[Tensor], Tensor], second_moment: Tensor, rounds: int, *, whole: bool = False
    ) -> Turned:
        basis, turns = like(self.basis, second_moment), self.takes_turns
        total = second_moment.diagonal().sum() if turns else None
        known = self._sizes.to(basis, non_blocking=True) if turns and self._sizes is not None else None
        for _ in range(rounds):
            chosen = None if whole else self._chosen(basis)
            # Rows of B as rows in memory: the product is a quarter faster than with the columns of B as columns.
            rows = basis.mT.contiguous()
            before = rows if chosen is None else rows.index_select(0, chosen)
            image = before @ second_moment
            size = torch.linalg.vector_norm(image, dim=1, keepdim=True)
            image = torch.where(size > 0, image, before)
            shares = None if total is None else size[:, 0] / total
            if chosen is None:
                known, rows = shares, image
            else:
                assert known is not None
                assert shares is not None
                known, rows = known.index_copy(0, chosen, shares), rows.index_copy(0, chosen, image)
            basis = orthonormalised(rows.mT)
        return Turned(basis, (), known)

    def _chosen(self, basis: Tensor) -> Tensor | None:
        """The columns that this round multiplies; None for all of them."""
        if self._sizes is None or basis.shape[1] < _MANY:
            return None
        every = torch.arange(basis.shape[1])
        small = self._sizes <= _SMALL * self._sizes.min()
        self._turn += 1
        chosen = torch.cat([every[~small], every[small][self._turn % _TURNS :: _TURNS]])
        return chosen.to(basis.device, non_blocking=True)


def leading_outside(second_moment: Tensor, basis: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """About the leading eigenvectors of (I − P) C (I − P), P = B Bᵀ, as columns (d, count), orthonormal to those of B,
    and their energies, descending, float64 on the host.

    Two rounds of subspace iteration from fixed random columns, and the eigenvectors of C within what that spans.
    """
    count = min(count, len(basis) - basis.shape[1])
    if count < 1:
        return basis[:, :0], torch.zeros(0, dtype=torch.float64)

    found, within, doubt = _unproven_outside(second_moment, basis, count)
    if not doubt <= TOLERANCE:
        found = _sought_outside(second_moment, basis, count, orthonormal)
        within = (found.mT @ (second_moment @ found)).cpu()
    values, vectors = torch.linalg.eigh(within)
    return found @ vectors.flip(1).to(found.device), values.flip(0).clamp(min=0).double()


def _unproven_outside(second_moment: Tensor, basis: Tensor, count: int) -> tuple[Tensor, Tensor, float]:
    """Columns F by steps that are yet to be judged, Fᵀ C F on the host, and the worst departure, by one read."""
    unproven = Unproven()
    found = _sought_outside(second_moment, basis, count, unproven)
    within, doubt = on_host([found.mT @ (second_moment @ found), Doubt.measured(unproven.doubts).max()])
    return found, within.to(found.dtype), float(doubt)


def _sought_outside(
    second_moment: Tensor, basis: Tensor, count: int, orthonormalised: Callable[[Tensor], Tensor]
) -> Tensor:
    def outside(columns: Tensor) -> Tensor:
        return columns - basis @ (basis.mT @ columns)

    found = outside(fixed_normal(len(basis), count, basis.dtype, basis.device))
    for _ in range(2):
        found = orthonormalised(outside(second_moment @ found))
    # Once more: what the first time leaves along B is not small beside short columns.
    return orthonormalised(outside(found))


def iterate_inverse(second_moment: Tensor, normals: Tensor, *, rounds: int) -> Tensor | None:
    """`rounds` of Z ← orth((C + μI)⁻¹ Z), from an orthonormal `normals` (d, m): subspace iteration by the complement.

    μ starts at the rounding error of C, and grows where C is not positive definite without more; it leaves the
    eigenvectors as they are. None where no μ below a thousandth of the energy makes it so.
    """
    for power in range(_SHIFTS):
        factor, failed = _shifted_factor(second_moment, power)
        if not bool(failed):
            for _ in range(rounds):
                normals = orthonormal(torch.cholesky_solve(normals, factor))
            return normals
    return None


def turned_inverse(second_moment: Tensor, normals: Tensor, *, rounds: int) -> Turned:
    """What `iterate_inverse` would do at its first μ, by steps that are yet to be judged; nothing is read."""
    factor, failed = _shifted_factor(second_moment, 0)
    doubts = []
    for _ in range(rounds):
        normals, doubt = doubtful_step(torch.cholesky_solve(normals, factor))
        doubts.append(Doubt((*doubt.failed, failed), doubt.first, doubt.second))
    return Turned(normals, tuple(doubts))


def _shifted_factor(second_moment: Tensor, power: int) -> tuple[Tensor, Tensor]:
    """The Cholesky factor of C + μI, and whether there was none."""
    shifted = second_moment.clone()
    # A power of two, by which products are exact.
    shifted.diagonal().add_(second_moment.diagonal().sum(), alpha=torch.finfo(second_moment.dtype).eps * 8**power)
    factor, failed = torch.linalg.cholesky_ex(shifted)
    return factor, failed
