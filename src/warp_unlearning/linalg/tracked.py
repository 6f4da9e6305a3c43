"""A principal subspace that follows its second moment as the model changes, without an eigendecomposition each time.

The first second moment is decomposed exactly. Later ones take rounds of subspace iteration from the basis before,
B ← orth(C B), which converges to the leading subspace at the rate of the eigenvalue gap, and starts next to it because
a network's inputs change slowly. With Z an orthonormal basis of the complement of B, the complement of C B is spanned
by C⁻¹ Z: a subspace of most dimensions is cheaper to follow by its complement, with one Cholesky factor of C and
triangular solves of few columns. Where the subspace no longer captures the energy asked for, it grows by the leading
directions outside of it, or its rank is chosen anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ..errors import InputError
from ..waiting import work_meanwhile
from .co_subspace import AnySubspace, CoSubspace
from .eigh_of_each import eigh, eigh_of_each
from .fine_type import fine
from .held_energy import held_by, missed_by
from .iteration import Span, iterate_inverse, leading_outside
from .leading_subspaces import leading_subspaces, products_pay
from .orthonormal import TOLERANCE, orthonormal
from .proposal import Proposal, proposed_by, proposed_by_columns, proposed_by_normals, proposed_in_turn
from .repeated_proposal import Prepared, RepeatedProposal, Way
from .subspace import Rule, Subspace, rank_for, restricted

# Above this share of the dimensions the complement is faster: d³/3 + 2 d² m + 2 d m² operations for its m = d − k
# directions, against about d² k + 2 d k², which are of a kind that processors are better at.
_COMPLEMENT_FROM = 0.62
# Directions that a subspace may grow by before it is cheaper to decompose again: a quarter of what it has, or one in so
# many of all where that is more, for layers may see few directions at first, and many as a network changes. A GPU takes
# several times as long for a decomposition, so that it looks for twice as many before.
_MOST_GROWN = 128
_GROWN_SHARE, _GROWN_SHARE_ELSEWHERE = 8, 4


# Of so few coordinates another round costs next to nothing.
_FEW = 256


class TrackedSubspace:
    """The subspace that holds `fraction` of a second moment, refreshed by `rounds` of subspace iteration, and one
    more of few coordinates.

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
        self.growths = 0
        self._alive = torch.empty(0, dtype=torch.bool)
        self._living = 0
        self._span: Span | None = None
        self._normals: Tensor | None = None
        self._aim = 1 - fraction
        self._repeated = RepeatedProposal()

    def refresh(self, second_moment: Tensor) -> AnySubspace:
        """The subspace for the second moment as it is now, shape (d, d).

        The energy it captures is exact after a decomposition and where there are few directions, and else estimated
        from random probes, to about a fiftieth of what is missed.
        """
        moment = fine(second_moment)
        alive = moment.diagonal() > 0
        followed = None
        if self.fraction < 1 and len(alive) == len(self._alive):
            self._alive = self._alive.to(alive.device)
            self._admit(alive)
            followed = self._follow(restricted(moment, self._alive))
        return self._decompose(moment, alive) if followed is None else followed

    def prepare(self, second_moment: Tensor, *, rounds: int | None = None) -> Prepared | None:
        """The next refresh, to be made without a read, and given to `settle` with its numbers before the next is
        prepared; None where there is nothing to go on from, or coordinates that were not alive, so that it takes
        `refresh`. `rounds` are the tracker's unless given.
        """
        if not self._can_propose(second_moment):
            return None
        rounds = self._rounds_of(second_moment, self.rounds if rounds is None else rounds)
        moment = fine(second_moment)
        repeated = self._repeated_way(rounds, Span.next_turn)
        if repeated is None:
            assert self._span is not None
            return Prepared((), partial(proposed_by, self._span, moment, rounds=rounds), lent=False)
        way, given = repeated
        return self._repeated.prepared(way, moment, *given, rounds=rounds)

    def make_ready(self, second_moment: Tensor) -> None:
        """Have what `prepare` would do with a second moment like this one captured, where that is possible."""
        rounds = self._rounds_of(second_moment, self.rounds)
        repeated = self._repeated_way(rounds, Span.turn) if self._can_propose(second_moment) else None
        if repeated is not None:
            way, given = repeated
            self._repeated.capture(way, fine(second_moment), *given, rounds=rounds)

    def _can_propose(self, second_moment: Tensor) -> bool:
        return self.fraction < 1 and 0 < self._living == len(self._alive) == len(second_moment)

    def _rounds_of(self, second_moment: Tensor, rounds: int) -> int:
        """So many, or one more of few coordinates, unless columns take turns by rounds."""
        turns = self._span is not None and self._span.takes_turns
        return rounds + (len(second_moment) <= _FEW and not turns)

    def _repeated_way(
        self, rounds: int, turn_of: Callable[[Span], tuple[Tensor, Tensor] | None]
    ) -> tuple[Way, tuple[Tensor, ...]] | None:
        """How the subspace is followed, and from what, where every refresh takes the same steps."""
        if self._normals is not None:
            return proposed_by_normals, (self._normals,)
        if self._span is None:
            return None
        if not self._span.takes_turns:
            return proposed_by_columns, (self._span.basis,)
        turn = turn_of(self._span) if rounds == 1 else None
        return None if turn is None else (proposed_in_turn, (self._span.basis, *turn))

    def settle(self, proposal: Proposal, numbers: Tensor) -> AnySubspace:
        """The subspace that was proposed, or, where its `numbers`, on the host, speak against it, that of `refresh`."""
        found = self.settled(proposal, numbers)
        return self._decompose(proposal.moment, proposal.moment.diagonal() > 0) if found is None else found

    def settled(self, proposal: Proposal, numbers: Tensor) -> AnySubspace | None:
        """The same, but None where it takes a decomposition, which `start_all` makes beside others."""
        doubt, missed, total = (numbers if len(numbers) == 3 else numbers[:3]).tolist()
        moment, turned = proposal.moment, proposal.turned
        if not total > 0 or (self._normals is not None and not doubt <= TOLERANCE):
            return self.refresh(moment)
        if self._normals is not None:
            return self._found_normals(moment, turned.columns, missed, total)
        assert self._span is not None
        sizes = None if turned.sizes is None else numbers[3:]
        if doubt <= TOLERANCE:
            self._span.accept(turned, sizes)
        else:
            self._span.mend(turned, sizes, doubt, moment)
            missed = missed_by(moment, self._span.basis)
        return self._followed(moment, self._span, missed, total)

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

    def begin_with(self, leading: Subspace, alive: Tensor) -> AnySubspace:
        """As `begin`, by the leading eigenvectors alone, in the coordinates that are alive."""
        return self._keep(alive, Span(leading.basis), None, leading.captured)

    def adopt(self, subspace: Subspace, alive: Tensor) -> AnySubspace:
        """Go on from a subspace found elsewhere, within the coordinates marked in `alive`, bool (d)."""
        within = subspace.basis[alive].to(torch.promote_types(subspace.basis.dtype, torch.float32))
        rank = within.shape[1]
        if rank > _COMPLEMENT_FROM * len(within):
            return self._keep(alive, None, torch.linalg.qr(within, mode="complete").Q[:, rank:], subspace.captured)
        return self._keep(alive, Span(within), None, subspace.captured)

    def awaken(self) -> None:
        """Go on as if every coordinate were alive: what has no energy does no harm, and `propose` needs to know."""
        if self.fraction < 1 and 0 < self._living < len(self._alive):
            self._admit(torch.ones_like(self._alive))

    def widen(self, columns: Tensor, d: int) -> None:
        """Go on where the coordinates so far are some, int64 indices, of d, and the others were never alive."""
        self._alive = self._alive.to(columns.device)
        self._alive = self._alive.new_zeros(d).index_copy_(0, columns, self._alive)

    def narrow(self, columns: Tensor) -> None:
        """Go on with some of the coordinates, int64 indices; the others were never alive."""
        self._alive = self._alive.to(columns.device).index_select(0, columns)

    def _keep(self, alive: Tensor, span: Span | None, normals: Tensor | None, captured: float) -> AnySubspace:
        self._alive, self._span, self._normals = alive, span, normals
        self._living = int(alive.sum())
        self._aim = 1 - self.fraction if self.rule == "energy" else 1 - captured
        return self._found(captured)

    def _found(self, captured: float) -> AnySubspace:
        if self._normals is not None:
            return CoSubspace(self._widened(self._normals), self._alive, captured, self._living)
        assert self._span is not None
        return Subspace(self._widened(self._span.basis), captured)

    def _follow(self, moment: Tensor) -> AnySubspace | None:
        total = float(moment.diagonal().sum())
        if not total > 0:
            return None
        if self._normals is not None:
            return self._follow_normals(moment, self._normals.to(moment), total)
        assert self._span is not None
        self._span.iterate(moment, rounds=self._rounds_of(moment, self.rounds))
        return self._followed(moment, self._span, missed_by(moment, self._span.basis), total)

    def _followed(self, moment: Tensor, span: Span, missed: float, total: float) -> AnySubspace | None:
        """The subspace after its rounds, with more directions where it takes some; None where a few do not do."""
        if span.takes_turns and not self._enough(1 - missed / total, moment):
            # What columns have missed that wait for their turn is no reason for more of them.
            span.iterate_whole(moment)
            missed = missed_by(moment, span.basis)
        if self._enough(1 - missed / total, moment):
            return self._found(1 - missed / total)
        return self._grown(moment, span, missed, total)

    def _grown(self, moment: Tensor, span: Span, missed: float, total: float) -> AnySubspace | None:
        """The subspace with as many directions more as hold the energy it lacks; None where a few do not."""
        lacking = missed - self._aim * total
        d, rank = span.basis.shape
        for most in _growths(d, rank, moment.device):
            fresh, energies = leading_outside(moment, span.basis, most)
            held = energies.cumsum(0)
            if len(held) and float(held[-1]) >= lacking:
                count = int((held < lacking).sum()) + 1
                self._span = span.grown(fresh[:, :count], energies[:count] / total)
                self.growths += 1
                return self._found(1 - (missed - float(held[count - 1])) / total)
        return None

    def _follow_normals(self, moment: Tensor, normals: Tensor, total: float) -> AnySubspace | None:
        turned = iterate_inverse(moment, normals, rounds=self._rounds_of(moment, self.rounds))
        if turned is None:
            return None
        return self._found_normals(moment, turned, held_by(moment, turned), total)

    def _found_normals(self, moment: Tensor, turned: Tensor, missed: float, total: float) -> AnySubspace:
        self._normals = turned
        if not self._enough(1 - missed / total, moment):
            self._normals, missed = _least_of(moment, turned, self._aim * total)
        return self._found(1 - missed / total)

    def _enough(self, captured: float, moment: Tensor) -> bool:
        rounding = len(moment) * torch.finfo(moment.dtype).eps
        return captured >= 1 - (1 + self.slack) * self._aim - rounding

    def _decompose(self, moment: Tensor, alive: Tensor) -> AnySubspace:
        self.decompositions += 1
        within = restricted(moment, alive)
        if self.by_products(within):
            (found,) = leading_subspaces([within.double()], self.fraction)
            if found is not None:
                return self.begin_with(found.to(within.dtype), alive)
        return self.begin(*eigh(within), alive)

    def by_products(self, within: Tensor) -> bool:
        """Whether to look for the subspace of a second moment by products first."""
        return self.rule == "energy" and self.fraction < 1 and products_pay(within, self._rank)

    @property
    def _rank(self) -> int | None:
        """Directions of the last subspace, within the coordinates alive; None before the first."""
        if self._normals is not None:
            return len(self._normals) - self._normals.shape[1]
        return None if self._span is None else self._span.basis.shape[1]

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
        self._alive, self._living = union, int(union.sum())


def start_all(trackers: Sequence[TrackedSubspace], second_moments: Sequence[Tensor]) -> list[AnySubspace]:
    """What `refresh` gives of each tracker that has nothing to go on from, with all decompositions side by side; others
    begin anew.
    """
    moments = [fine(moment) for moment in second_moments]
    alive = [moment.diagonal() > 0 for moment in moments]
    matrices = [restricted(moment, some) for moment, some in zip(moments, alive, strict=True)]
    leading = _leading_of(trackers, matrices)
    others = [i for i in range(len(matrices)) if i not in leading]
    each = eigh_of_each([matrices[i].unsqueeze(0) for i in others], meanwhile=work_meanwhile)
    decomposed = dict(zip(others, each, strict=True))
    found = []
    for i, (tracker, some) in enumerate(zip(trackers, alive, strict=True)):
        tracker.decompositions += 1
        if i in leading:
            found.append(tracker.begin_with(leading[i], some))
        else:
            values, vectors = decomposed[i]
            found.append(tracker.begin(values[0], vectors[0], some))
    return found


def _leading_of(trackers: Sequence[TrackedSubspace], matrices: Sequence[Tensor]) -> dict[int, Subspace]:
    """The subspaces that products alone give, by place."""
    alike: dict[tuple[float, torch.device], list[int]] = {}
    for i, (tracker, matrix) in enumerate(zip(trackers, matrices, strict=True)):
        if tracker.by_products(matrix):
            alike.setdefault((tracker.fraction, matrix.device), []).append(i)
    found: dict[int, Subspace] = {}
    for (fraction, _), places in alike.items():
        leading = leading_subspaces([matrices[i].double() for i in places], fraction)
        found |= {i: each.to(matrices[i].dtype) for i, each in zip(places, leading, strict=True) if each is not None}
    return found


def _growths(d: int, rank: int, device: torch.device) -> list[int]:
    """How many directions a subspace of `rank` in d dimensions may grow by, those to be looked for first first."""
    shares = (_GROWN_SHARE,) if device.type == "cpu" else (_GROWN_SHARE, _GROWN_SHARE_ELSEWHERE)
    return sorted({min(_MOST_GROWN, max(rank // 4, d // share)) for share in shares})


def _least_of(second_moment: Tensor, normals: Tensor, energy: float) -> tuple[Tensor, float]:
    """The largest part of span(Z) that holds at most `energy`, by the eigenvectors of Zᵀ C Z, and what it holds."""
    values, vectors = eigh(normals.mT @ (second_moment @ normals))
    held = values.double().clamp(min=0).cumsum(0)
    kept = int((held <= energy).sum())
    return orthonormal(normals @ vectors[:, :kept]), float(held[kept - 1]) if kept else 0.0
