"""Input bases that follow a model as it changes, at a fraction of the price of computing them anew.

The first call sees all inputs and decomposes their second moments C exactly. A later call looks at a random part of the
examples and of their patches, blends the second moment Ĉ of that part into the one it keeps,

    C ← (1 − blend) C + blend Ĉ,

and follows the leading subspace of C by subspace iteration. A few thousand patches alone say too little about thousands
of dimensions: a basis from Ĉ misses much more of unseen inputs than one left as it was, and the blend less than either.
A model that has moved is told by what the basis misses of the new inputs: where that has grown from m₀ to m, the weight
is 1 − m₀/m, if that is more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..linalg.co_subspace import AnySubspace
from ..linalg.gram import add_gram, gram, mirrored
from ..linalg.on_host import on_host
from ..linalg.subspace import Rule
from ..linalg.tracked import Proposal, TrackedSubspace
from .input_bases import InputBasis, ObservedRows, exact_bases, input_rows, observed_rows, require_finite
from .layer_inputs import observe_inputs
from .linear_weights import LinearWeight
from .sampled_inputs import generator_on, sampled_examples, sampled_rows

_AT_A_TIME = 128
# Entries of the inputs that a refreshed basis is measured on.
_MEASURED = 2**21


class TrackedBases:
    """The bases that hold `energy` of every linear weight's inputs, refreshed by `rounds` of subspace iteration.

    `examples` are looked at in a refresh, and `patches` of each in a convolution (or tokens, in a layer that sees
    several). `blend` is the least weight of what was just seen: a second moment from n refreshes ago counts at most
    (1 − blend)ⁿ. Ranks are chosen anew where a running second moment has more than 1 + `slack` times the energy outside
    that `energy` allows; one batch differs from the next by about as much. Where a basis misses more than `restart`
    times the energy of new inputs that it missed at best, the model has moved too far to be followed, and the next
    refresh starts with exact bases again.
    """

    def __init__(
        self,
        energy: float,
        *,
        rule: Rule = "energy",
        rounds: int = 1,
        examples: int = 128,
        patches: int = 32,
        blend: float = 0.1,
        slack: float = 0.25,
        restart: float = 2.0,
    ) -> None:
        for name, count in (("examples", examples), ("patches", patches)):
            if count < 1:
                raise InputError(f"{name} is {count}; a refresh must look at one at least")
        if not 0 < blend <= 1:
            raise InputError(f"blend is {blend}; the weight of what was just seen must be above 0 and at most 1")
        if not restart > 1:
            raise InputError(f"restart is {restart}; the growth of missed energy that is too much must be above 1")
        self.energy, self.rule, self.rounds, self.slack = energy, rule, rounds, slack
        self.examples, self.patches, self.blend, self.restart = examples, patches, blend, restart
        self.exact_builds = 0
        self._tracker()
        self._layers: dict[str, _Layer] = {}

    def refresh(
        self, model: nn.Module, batches: Iterable[Tensor], *, generator: torch.Generator
    ) -> dict[str, InputBasis]:
        """The bases for the model as it stands (put it in eval mode), by weight name; the model is left unchanged.

        After the first call, the captured energy is what a basis held of the inputs just seen before it took them in:
        an honest figure for inputs it was not made from, and on the low side. A weight first seen in a later call
        starts from the sample. An energy of 1 is a span that no blend could follow: it is exact every time.
        """
        if self.energy == 1:
            self.exact_builds += 1
            return exact_bases(model, batches, energy=self.energy, rule=self.rule)
        if not self._layers or self._lost():
            return self.start(observed_rows(model, batches, dtype=None))
        known = {name: layer.columns for name, layer in self._layers.items() if layer.columns is not None}
        return self._follow(_sampled(model, batches, self.examples, self.patches, generator, known))

    def start(self, seen: dict[str, ObservedRows]) -> dict[str, InputBasis]:
        """The exact bases of inputs already summed up, which `seen` gives up one by one; the next refresh follows."""
        energies = dict(zip(seen, on_host([observed.rows.energy() for observed in seen.values()]), strict=True))
        for name, energy in energies.items():
            require_finite(name, energy)
        self.exact_builds += 1
        self._layers = {}
        return {name: self._start(seen.pop(name), energies[name] > 0) for name in list(seen)}

    def _lost(self) -> bool:
        return any(layer.misses(more_than=self.restart, of=1 - self.energy) for layer in self._layers.values())

    def _tracker(self) -> TrackedSubspace:
        return TrackedSubspace(self.energy, rule=self.rule, rounds=self.rounds, slack=self.slack)

    def _start(self, observed: ObservedRows, alive: Tensor) -> InputBasis:
        """`alive`, bool (groups, d) on the host, are the coordinates that inputs reach."""
        weight, rows = observed.weight, observed.rows
        device = weight.tensor.device
        columns = _Columns.of(alive, weight, device)
        if columns is not None:
            rows, alive = rows.within(columns.kept), alive.index_select(1, columns.kept.cpu())
        trackers = [self._tracker() for _ in range(rows.groups)]
        moment = rows.second_moment() / rows.positions
        if rows.positions > rows.d:
            blocks = [tracker.refresh(m) for tracker, m in zip(trackers, moment, strict=True)]
        else:
            exact = rows.subspaces(self.energy, rule=self.rule)
            blocks = [t.adopt(s, a) for t, s, a in zip(trackers, exact, alive.to(device), strict=True)]
        layer = self._layers[weight.name] = _Layer(moment, trackers, blocks, columns=columns)
        layer.awaken()
        return layer.basis(weight, blocks, rows.positions, int(alive.sum()))

    def _follow(self, samples: dict[str, _Sample]) -> dict[str, InputBasis]:
        """One read for all layers; until it is done, nothing that is kept has changed."""
        drafts = {name: self._draft(samples.pop(name)) for name in list(samples)}
        read = on_host([draft.numbers for draft in drafts.values()])
        for name, numbers in zip(drafts, read, strict=True):
            require_finite(name, numbers[:2])
        return {
            name: self._settled(drafts.pop(name), numbers) for name, numbers in zip(list(drafts), read, strict=True)
        }

    def _draft(self, sample: _Sample) -> _Draft:
        latest = mirrored(sample.total).div_(sample.positions)
        layer = self._layers.get(sample.weight.name)
        if layer is None or layer.within.shape != latest.shape:
            return _Draft(sample, latest, _energy(latest).reshape(1))
        missed = layer.missed_shares(sample.some_rows())
        moment = layer.blended(latest, missed, blend=self.blend)
        diagonal = moment.diagonal(dim1=1, dim2=2)
        proposals = [tracker.propose(m) for tracker, m in zip(layer.trackers, moment, strict=True)]
        own = [_energy(latest), sample.stray.double(), (diagonal > 0).sum(dtype=torch.float64)]
        parts = [torch.stack(own), missed, *(proposal.numbers for proposal in proposals if proposal is not None)]
        return _Draft(sample, latest, torch.cat(parts), layer, moment, proposals)

    def _settled(self, draft: _Draft, numbers: Tensor) -> InputBasis:
        sample, layer = draft.sample, draft.layer
        weight = sample.weight
        if layer is None or draft.moment is None:
            layer = self._layers[weight.name] = _Layer(draft.latest, [self._tracker() for _ in draft.latest])
            return self._refreshed(layer, weight, sample.positions)
        if numbers[1] > 0:
            layer.widen()
            rows = sample.all_rows()
            missed = layer.missed_shares(_some(rows, share=1.0))
            layer.within = layer.blended(gram(rows).div_(sample.positions), missed, blend=self.blend)
            layer.note(missed.tolist())
            return self._refreshed(layer, weight, sample.positions)
        groups = len(draft.moment)
        layer.within = draft.moment
        layer.note(numbers[3 : 3 + groups].tolist())
        place, blocks = 3 + groups, []
        for tracker, moment, proposal in zip(layer.trackers, draft.moment, draft.proposals, strict=True):
            if proposal is None:
                blocks.append(tracker.refresh(moment))
                continue
            end = place + len(proposal.numbers)
            blocks.append(tracker.settle(proposal, numbers[place:end]))
            place = end
        layer.spans = blocks
        layer.awaken()
        return layer.basis(weight, layer.measured_blocks(), sample.positions, int(numbers[2]))

    def _refreshed(self, layer: _Layer, weight: LinearWeight, positions: int) -> InputBasis:
        """The basis after a refresh that reads what it needs, layer by layer."""
        layer.spans = [tracker.refresh(m) for tracker, m in zip(layer.trackers, layer.within, strict=True)]
        reached = (layer.within.diagonal(dim1=1, dim2=2) > 0).cpu()
        if layer.columns is None:
            layer.narrow(_Columns.of(reached, weight, layer.within.device))
        layer.awaken()
        return layer.basis(weight, layer.measured_blocks(), positions, int(reached.sum()))


@dataclass(frozen=True, eq=False)
class _Columns:
    """Which of `d` coordinates are kept, and which are not: taps of a kernel that meet nothing but padding.

    A tap is kept with all of its channels. A channel that is never active may be so later, padding is what it is.
    """

    d: int
    kept: Tensor
    others: Tensor

    @classmethod
    def of(cls, alive: Tensor, weight: LinearWeight, device: torch.device) -> _Columns | None:
        """Those of the taps that `alive`, bool (groups, d) on the host, marks in some channel; None for all, or where
        nothing is.
        """
        taps = weight.tensor.shape[2:].numel()
        met = alive.any(0)[: weight.d].reshape(-1, taps).any(0)
        if bool(met.all()) or not bool(met.any()):
            return None
        some = torch.cat([met.repeat(weight.d // taps), met.new_ones(alive.shape[1] - weight.d)])
        return cls(len(some), some.nonzero().flatten().to(device), (~some).nonzero().flatten().to(device))


@dataclass
class _Layer:
    """What is kept of one weight: its running second moment (groups, d, d), a mean over inputs; a tracker for each
    group and the subspace it last gave. `within` and `spans` are these within `columns`, where some coordinates are
    never reached.

    `missed` is the share of new inputs' energy that each of them missed at the last refresh; `best` is the smallest
    that the worst of them ever missed.
    """

    within: Tensor
    trackers: list[TrackedSubspace]
    spans: list[AnySubspace] = field(default_factory=list)
    missed: list[float] = field(default_factory=list)
    best: float = 1.0
    columns: _Columns | None = None

    @property
    def moment(self) -> Tensor:
        """The running second moment over all coordinates."""
        if self.columns is None:
            return self.within
        kept, d = self.columns.kept, self.columns.d
        wide = self.within.new_zeros(len(self.within), d, len(kept)).index_copy_(1, kept, self.within)
        return self.within.new_zeros(len(self.within), d, d).index_copy_(2, kept, wide)

    @property
    def blocks(self) -> list[AnySubspace]:
        """The subspaces over all coordinates."""
        if self.columns is None:
            return self.spans
        return [span.within(self.columns.kept, self.columns.d) for span in self.spans]

    def missed_shares(self, rows: Tensor) -> Tensor:
        """The share of the energy of new inputs that each subspace misses, (groups)."""
        return torch.stack([block.missed_share(some) for block, some in zip(self.spans, rows, strict=True)])

    def blended(self, latest: Tensor, missed: Tensor, *, blend: float) -> Tensor:
        """The running second moment with the latest taken in."""
        worst = missed.max()
        grown = torch.where(worst > 0, 1 - worst.clamp(max=self.best) / worst, 0.0)
        return torch.lerp(self.within.to(latest), latest, grown.clamp(min=blend).to(latest))

    def note(self, missed: list[float]) -> None:
        self.missed = missed
        self.best = min(self.best, max(missed))

    def measured_blocks(self) -> list[AnySubspace]:
        if not self.missed:
            return self.spans
        return [replace(block, captured=1 - share) for block, share in zip(self.spans, self.missed, strict=True)]

    def misses(self, *, more_than: float, of: float) -> bool:
        return bool(self.missed) and max(self.missed) > more_than * max(self.best, of)

    def awaken(self) -> None:
        for tracker in self.trackers:
            tracker.awaken()

    def widen(self) -> None:
        """Keep all coordinates again."""
        if self.columns is None:
            return
        for tracker in self.trackers:
            tracker.widen(self.columns.kept, self.columns.d)
        self.within, self.spans, self.columns = self.moment, self.blocks, None

    def narrow(self, columns: _Columns | None) -> None:
        """Keep some of all coordinates; the others have no energy."""
        if columns is None:
            return
        kept = columns.kept
        self.within = self.within.index_select(1, kept).index_select(2, kept)
        for tracker in self.trackers:
            tracker.narrow(kept)
        self.spans = [block.narrowed(kept) for block in self.spans]
        self.columns = columns

    def basis(self, weight: LinearWeight, blocks: Sequence[AnySubspace], positions: int, count: int) -> InputBasis:
        """The basis over all coordinates, of which `count` are reached."""
        kind = torch.promote_types(weight.tensor.dtype, torch.float32)
        reached = self.within.diagonal(dim1=1, dim2=2) > 0
        wide = [block.to(kind) for block in blocks]
        if self.columns is not None:
            kept, d = self.columns.kept, self.columns.d
            reached = reached.new_zeros(len(reached), d).index_copy_(1, kept, reached)
            wide = [block.within(kept, d) for block in wide]
        return InputBasis(weight.name, weight.bias, tuple(wide), reached, positions, count)


@dataclass
class _Draft:
    """A refresh of one layer that is yet to be judged: by the energy of the sample, that of coordinates never reached
    before, how many are reached, the shares missed, and the numbers of each group's proposal.
    """

    sample: _Sample
    latest: Tensor
    numbers: Tensor
    layer: _Layer | None = None
    moment: Tensor | None = None
    proposals: list[Proposal | None] = field(default_factory=list)


@dataclass
class _Sample:
    """Inputs of one weight: the sum of p pᵀ on and below the diagonal, how many, and some of them as they were.

    Where the layer keeps some `columns` alone, `total` is within those, `stray` is the largest number in any other, and
    all inputs are kept until that is known to be zero.
    """

    weight: LinearWeight
    total: Tensor
    stray: Tensor
    columns: _Columns | None = None
    positions: int = 0
    some: list[Tensor] = field(default_factory=list)
    whole: list[Tensor] = field(default_factory=list)

    @classmethod
    def like(cls, weight: LinearWeight, rows: Tensor, columns: _Columns | None) -> _Sample:
        kind = torch.promote_types(weight.tensor.dtype, torch.float32)
        if columns is not None and (columns.d != rows.shape[2] or columns.kept.device != rows.device):
            columns = None
        d = rows.shape[2] if columns is None else len(columns.kept)
        empty = torch.zeros(rows.shape[0], d, d, dtype=kind, device=rows.device)
        return cls(weight, empty, empty.new_zeros(()), columns)

    def add(self, rows: Tensor, *, share: float) -> None:
        rows = rows.to(self.total.dtype)
        if self.columns is not None:
            self.whole.append(rows.clone())
            self.stray = torch.maximum(self.stray, rows.index_select(2, self.columns.others).abs().max())
            rows = rows.index_select(2, self.columns.kept)
        add_gram(self.total, rows)
        self.positions += rows.shape[1]
        self.some.append(_some(rows, share=share).clone())

    def some_rows(self) -> Tensor:
        return self.some[0] if len(self.some) == 1 else torch.cat(self.some, dim=1)

    def all_rows(self) -> Tensor:
        return torch.cat(self.whole, dim=1)


def _sampled(
    model: nn.Module,
    batches: Iterable[Tensor],
    examples: int,
    patches: int,
    generator: torch.Generator,
    known: Mapping[str, _Columns],
) -> dict[str, _Sample]:
    samples: dict[str, _Sample] = {}
    parts = _joined(sampled_examples(batches, examples, generator=generator))
    draw = generator_on(parts[0].device, generator) if parts else generator

    def record(weight: LinearWeight, layer: nn.Module, x: Tensor) -> None:
        rows = input_rows(weight, sampled_rows(layer, x, patches, generator=draw))
        if weight.name not in samples:
            samples[weight.name] = _Sample.like(weight, rows, known.get(weight.name))
        samples[weight.name].add(rows, share=1 / len(parts))

    observe_inputs(model, parts, record)
    return samples


def _energy(moment: Tensor) -> Tensor:
    return moment.diagonal(dim1=1, dim2=2).sum(dtype=torch.float64)


def _some(rows: Tensor, *, share: float) -> Tensor:
    """As many of the rows (groups, n, d) as a share of the measure has room for."""
    room = max(1, int(share * _MEASURED / (rows.shape[0] * rows.shape[2])))
    return rows[:, :: -(-rows.shape[1] // room)]


def _joined(parts: list[Tensor]) -> list[Tensor]:
    """The same examples in batches of a good size, where they have one shape."""
    if len({part.shape[1:] for part in parts}) != 1:
        return parts
    return list(torch.split(torch.cat(parts), _AT_A_TIME))
