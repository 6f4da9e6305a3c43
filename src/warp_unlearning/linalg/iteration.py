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
# Columns are multiplied in such multiples, one more than it takes, and as many as the last time where that is so many
# multiples too many at most: so that from round to round as many are, and a graph can repeat it.
_TOGETHER = 32
_MULTIPLES_TOO_MANY = 4
# Of many columns, such a part is made orthonormal first, on a CPU, where another step for all costs more than two.
_LEADING = 4
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
        # How many columns the last round multiplied.
        self._multiplied = 0

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
        unproven = _unproven(self.basis, second_moment) if self.takes_turns else Unproven()
        turned = self._turned_by(unproven, second_moment, rounds)
        return Turned(turned.columns, tuple(unproven.doubts), turned.sizes)

    def turn(self) -> tuple[Tensor, Tensor] | None:
        """The eigenvalues as shares, (k), and the columns that a round multiplies, on the host; None for all."""
        if self._sizes is None or not self.takes_turns:
            return None
        chosen = _in_turn(self._sizes, self._turn, before=self._multiplied)
        self._multiplied = len(chosen)
        return self._sizes.to(self.basis.dtype), chosen

    def next_turn(self) -> tuple[Tensor, Tensor] | None:
        """The same for the next round."""
        self._turn += 1
        return self.turn()

    def accept(self, turned: Turned, sizes: Tensor | None) -> None:
        """Go on from there; `sizes` are those of `turned`, on the host."""
        self.basis = turned.columns
        self._sizes = sizes

    def grown(self, columns: Tensor, shares: Tensor) -> Span:
        """The same with further columns, orthonormal to all, whose eigenvalues as shares are on the host."""
        sizes = None if self._sizes is None else torch.cat([self._sizes, shares.to(self._sizes)])
        found = Span(torch.cat([self.basis, columns.to(self.basis)], dim=1), sizes)
        found._multiplied = self._multiplied
        return found

    def _turned_by(
        self, orthonormalised: Callable[[Tensor], Tensor], second_moment: Tensor, rounds: int, *, whole: bool = False
    ) -> Turned:
        basis = like(self.basis, second_moment)
        known: Tensor | None = None
        for _ in range(rounds):
            turn = None if whole else self.next_turn()
            if turn is None:
                rows, shares = _multiplied(basis.mT.contiguous(), second_moment)
                known = shares() if self.takes_turns else None
            else:
                sizes, chosen = (part.to(basis.device, non_blocking=True) for part in turn)
                rows, known = _some_multiplied(basis, second_moment, sizes if known is None else known, chosen)
            basis = orthonormalised(rows.mT)
        return Turned(basis, (), known)


def turned_in_turn(second_moment: Tensor, basis: Tensor, sizes: Tensor, chosen: Tensor) -> Turned:
    """One round that multiplies some columns (k'), int64, of a basis whose eigenvalues are known as shares, (k), by a
    step that is yet to be judged; nothing is read.
    """
    rows, known = _some_multiplied(like(basis, second_moment), second_moment, sizes, chosen)
    unproven = _unproven(basis, second_moment)
    return Turned(unproven(rows.mT), tuple(unproven.doubts), known)


def _unproven(basis: Tensor, second_moment: Tensor) -> Unproven:
    """For many columns, which lie about in the order of their eigenvalues."""
    return Unproven(basis.shape[1] // _LEADING if second_moment.device.type == "cpu" else 0)


def _multiplied(rows: Tensor, second_moment: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
    """Rows of B, in whose memory the product is a quarter faster than with columns, multiplied by C, but for those that
    it maps to zero; and what their eigenvalues are, as shares.
    """
    image = rows @ second_moment
    size = torch.linalg.vector_norm(image, dim=1, keepdim=True)
    return torch.where(size > 0, image, rows), lambda: size[:, 0] / second_moment.diagonal().sum()


def _some_multiplied(basis: Tensor, second_moment: Tensor, known: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """All rows of B, of which those chosen are multiplied, and all eigenvalues as shares, of which theirs are new."""
    rows = basis.mT.contiguous()
    image, shares = _multiplied(rows.index_select(0, chosen), second_moment)
    return rows.index_copy(0, chosen, image), like(known, rows).index_copy(0, chosen, shares())


def _in_turn(sizes: Tensor, turn: int, *, before: int = 0) -> Tensor:
    """The columns that a round multiplies: those of large eigenvalues, and of the others every fourth, by turns, with
    as many more of those next in turn as make them the next multiple but one of `_TOGETHER`, or as many as `before`.
    """
    every = torch.arange(len(sizes))
    small = sizes <= _SMALL * sizes.min()
    large, others = every[~small], every[small]
    needed = len(large) + -(-len(others) // _TURNS)
    count = _TOGETHER * (-(-needed // _TOGETHER) + 1)
    if needed <= before <= count + _MULTIPLES_TOO_MANY * _TOGETHER:
        count = before
    waiting = torch.cat([others[(turn + later) % _TURNS :: _TURNS] for later in range(_TURNS)])
    return torch.cat([large, waiting])[:count]


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
