"""Rounds of subspace iteration towards the leading eigenvectors of a second moment C (d, d)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from .orthonormal import TOLERANCE, by_one_step, orthonormal

# From this many columns on, those with an eigenvalue of less than so many times the smallest take so many turns.
_MANY = 512
_SMALL = 4.0
_TURNS = 4
_SHIFTS = 5


@dataclass(frozen=True, eq=False)
class Turned:
    """What rounds of iteration came to, if `doubt`, the worst departure from orthonormal columns of all rounds, proves
    to be small; `sizes` are the eigenvalues of the columns, as shares, where they are known.
    """

    columns: Tensor
    doubt: Tensor
    sizes: Tensor | None = None


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
        turn = self._turn
        turned = self.turned(second_moment, rounds=rounds)
        if not float(turned.doubt) <= TOLERANCE:
            self._turn = turn
            turned = self._turned_by(orthonormal, second_moment, rounds)
        self.accept(turned, None if turned.sizes is None else turned.sizes.cpu())

    def turned(self, second_moment: Tensor, *, rounds: int) -> Turned:
        """What `iterate` would do, by steps that are yet to be judged; nothing is read, and the basis stays."""
        doubts: list[Tensor] = []

        def unproven(columns: Tensor) -> Tensor:
            q, doubt = by_one_step(columns)
            doubts.append(doubt)
            return q

        turned = self._turned_by(unproven, second_moment, rounds)
        return Turned(turned.columns, doubts[0] if len(doubts) == 1 else torch.stack(doubts).max(), turned.sizes)

    def accept(self, turned: Turned, sizes: Tensor | None) -> None:
        """Go on from there; `sizes` are those of `turned`, on the host."""
        self.basis = turned.columns
        self._sizes = sizes

    def _turned_by(self, orthonormalised: Callable[[Tensor], Tensor], second_moment: Tensor, rounds: int) -> Turned:
        basis, total = self.basis.to(second_moment), second_moment.diagonal().sum()
        known = None if self._sizes is None else self._sizes.to(basis, non_blocking=True)
        for _ in range(rounds):
            chosen = self._chosen(basis)
            # Rows of B as rows in memory: the product is a quarter faster than with the columns of B as columns.
            rows = basis.mT.contiguous()
            before = rows if chosen is None else rows.index_select(0, chosen)
            image = before @ second_moment
            size = image.norm(dim=1)
            image = torch.where((size > 0).unsqueeze(1), image, before)
            shares = size / total
            if chosen is None:
                known, rows = shares, image
            else:
                assert known is not None
                known, rows = known.index_copy(0, chosen, shares), rows.index_copy(0, chosen, image)
            basis = orthonormalised(rows.mT)
        return Turned(basis, basis.new_zeros(()), known if self.takes_turns else None)

    def _chosen(self, basis: Tensor) -> Tensor | None:
        """The columns that this round multiplies; None for all of them."""
        if self._sizes is None or basis.shape[1] < _MANY:
            return None
        every = torch.arange(basis.shape[1])
        small = self._sizes <= _SMALL * self._sizes.min()
        self._turn += 1
        chosen = torch.cat([every[~small], every[small][self._turn % _TURNS :: _TURNS]])
        return chosen.to(basis.device, non_blocking=True)


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
    doubts = [torch.where(failed == 0, 0.0, inf).to(second_moment.dtype)]
    for _ in range(rounds):
        normals, doubt = by_one_step(torch.cholesky_solve(normals, factor))
        doubts.append(doubt)
    return Turned(normals, torch.stack(doubts).max())


def _shifted_factor(second_moment: Tensor, power: int) -> tuple[Tensor, Tensor]:
    """The Cholesky factor of C + μI, and whether there was none."""
    diagonal = second_moment.diagonal()
    shift = diagonal.sum() * (torch.finfo(second_moment.dtype).eps * 8**power)
    factor, failed = torch.linalg.cholesky_ex(second_moment + torch.diag(shift.expand(len(diagonal))))
    return factor, failed
