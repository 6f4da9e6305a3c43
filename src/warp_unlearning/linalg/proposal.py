"""Refreshes of a principal subspace that are yet to be judged, made without a read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .fine_type import like
from .held_energy import held_energy, missed_energy
from .iteration import Span, Turned, turned_in_turn, turned_inverse
from .orthonormal import Doubt


@dataclass(frozen=True, eq=False)
class Proposal:
    """A refresh of the subspace of `moment` that is yet to be judged, and the energy that it misses."""

    moment: Tensor
    turned: Turned
    missed: Tensor

    @property
    def numbers(self) -> Tensor:
        """What it is judged by, float64 (3 + k): the doubt about its columns, the energy missed and all there is, and
        the eigenvalues of k columns.
        """
        judged = torch.stack([self.turned.doubt, self.missed, self.moment.diagonal().sum()]).double()
        return judged if self.turned.sizes is None else torch.cat([judged, self.turned.sizes.double()])

    @staticmethod
    def judged(proposals: Sequence[Proposal]) -> tuple[Tensor, Tensor]:
        """The doubts and the missed energies of many, (n) each, not read, by a few operations."""
        doubts = [proposal.turned.doubts for proposal in proposals]
        rounds = max(map(len, doubts))
        # Those of fewer rounds count more than once, so that all have as many.
        every = Doubt.measured([own[number % len(own)] for own in doubts for number in range(rounds)])
        return every.view(-1, rounds).amax(1), torch.stack([proposal.missed for proposal in proposals])


def proposed_by(span: Span, moment: Tensor, *, rounds: int) -> Proposal:
    """The subspace of a span after so many rounds."""
    turned = span.turned(moment, rounds=rounds)
    return Proposal(moment, turned, missed_energy(moment, turned.columns))


def proposed_by_columns(rounds: int, moment: Tensor, basis: Tensor) -> Proposal:
    """The same by the columns alone, which are too few to take turns."""
    return proposed_by(Span(basis), moment, rounds=rounds)


def proposed_in_turn(rounds: int, moment: Tensor, basis: Tensor, sizes: Tensor, chosen: Tensor) -> Proposal:
    """The same by one round of the columns whose turn it is."""
    turned = turned_in_turn(moment, basis, sizes, chosen)
    return Proposal(moment, turned, missed_energy(moment, turned.columns))


def proposed_by_normals(rounds: int, moment: Tensor, normals: Tensor) -> Proposal:
    """The subspace that `normals` are the complement of, after so many rounds by these."""
    turned = turned_inverse(moment, like(normals, moment), rounds=rounds)
    return Proposal(moment, turned, held_energy(moment, turned.columns))
