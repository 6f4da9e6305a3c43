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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from sys import maxsize
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..linalg.co_subspace import AnySubspace
from ..linalg.gram import add_gram, gram, mirrored
from ..linalg.on_host import on_host
from ..linalg.side_streams import SideStreams
from ..linalg.subspace import Rule, energy_shares
from ..linalg.tracked import Proposal, TrackedSubspace, start_all
from .input_bases import InputBasis, ObservedRows, energies_of, exact_bases, input_rows, observed_rows, require_finite
from .layer_inputs import Taps, Window, kernel_of, observe_inputs
from .linear_weights import LinearWeight
from .sampled_inputs import generator_on, sampled_examples, sampled_rows

_AT_A_TIME = 128
_AT_A_TIME_ELSEWHERE = 4096
# A look at all examples is a look at this part of the patches of each.
_FEWER_PATCHES = 8
# Entries of the inputs that a refreshed basis is measured on.
_MEASURED = 2**21


class TrackedBases:
    """The bases that hold `energy` of every linear weight's inputs, refreshed by `rounds` of subspace iteration.

    `examples` are looked at in a refresh, and `patches` of each in a convolution (or tokens, in a layer that sees
    several). `blend` is the least weight of what was just seen: a second moment from n refreshes ago counts at most
    (1 − blend)ⁿ. Ranks are chosen anew where a running second moment has more than 1 + `slack` times the energy outside
    that `energy` allows; one batch differs from the next by about as much. Where a basis misses more than `restart`
    times the energy of new inputs that it missed at best, the next refresh forgets the second moments before: it looks
    at all examples, and at fewer patches of each, and iterates once more. Beyond `afar` times, the model has moved too
    far to be followed, and the next refresh starts with exact bases again.
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
        afar: float = 4.0,
    ) -> None:
        for name, count in (("examples", examples), ("patches", patches)):
            if count < 1:
                raise InputError(f"{name} is {count}; a refresh must look at one at least")
        if not 0 < blend <= 1:
            raise InputError(f"blend is {blend}; the weight of what was just seen must be above 0 and at most 1")
        if not restart > 1:
            raise InputError(f"restart is {restart}; the growth of missed energy that is too much must be above 1")
        if not afar >= 1:
            raise InputError(f"afar is {afar}; the growth of missed energy that is not followed must be at least 1")
        self.energy, self.rule, self.rounds, self.slack = energy, rule, rounds, slack
        self.examples, self.patches, self.blend = examples, patches, blend
        self.restart, self.afar = restart, afar
        self.exact_builds = self.renewals = 0
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
        if not self._layers or self._lost(max(self.afar, self.restart)):
            return self.start(observed_rows(model, batches, dtype=None, met=True))
        known = {name: layer.columns for name, layer in self._layers.items() if layer.columns is not None}
        if not self._lost(self.restart):
            return self._follow(_sampled(model, batches, self.examples, self.patches, generator, known))
        self.renewals += 1
        patches = -(-self.patches // _FEWER_PATCHES)
        return self._follow(_sampled(model, batches, maxsize, patches, generator, known), anew=True)

    def start(self, seen: dict[str, ObservedRows]) -> dict[str, InputBasis]:
        """The exact bases of inputs already summed up, which `seen` gives up one by one; the next refresh follows."""
        energies = energies_of(seen)
        self.exact_builds += 1
        self._layers = {}
        # Together on a GPU; elsewhere one after the other, so that what was summed up of each can go before the next.
        together = bool(seen) and next(iter(seen.values())).weight.tensor.device.type != "cpu"
        found: dict[str, InputBasis] = {}
        for names in [list(seen)] if together else [[name] for name in seen]:
            found |= self._start([self._beginning(seen.pop(name), energies[name] > 0) for name in names])
        return found

    def _lost(self, growth: float) -> bool:
        return any(layer.misses(more_than=growth, of=1 - self.energy) for layer in self._layers.values())

    def _tracker(self) -> TrackedSubspace:
        return TrackedSubspace(self.energy, rule=self.rule, rounds=self.rounds, slack=self.slack)

    def _beginning(self, observed: ObservedRows, alive: Tensor) -> _Beginning:
        """`alive`, bool (groups, d) on the host, are the coordinates that inputs reach."""
        weight = observed.weight
        device = weight.tensor.device
        columns = _Columns.of(alive, weight, device)
        if columns is None:
            rows = observed.whole().rows
        else:
            kept = columns.kept.cpu()
            rows, alive = observed.within(kept), alive.index_select(1, kept)
        layer = _Layer(
            rows.second_moment() / rows.positions, [self._tracker() for _ in range(rows.groups)], columns=columns
        )
        if rows.positions <= rows.d:
            exact = rows.subspaces(self.energy, rule=self.rule)
            layer.spans = [t.adopt(s, a) for t, s, a in zip(layer.trackers, exact, alive.to(device), strict=True)]
        return _Beginning(weight, layer, rows.positions, int(alive.sum()))

    def _start(self, beginnings: Sequence[_Beginning]) -> dict[str, InputBasis]:
        """Decompose what is not yet, all side by side."""
        waiting = [b.layer for b in beginnings if not b.layer.spans]
        pairs = [pair for layer in waiting for pair in zip(layer.trackers, layer.within, strict=True)]
        spans = iter(start_all([tracker for tracker, _ in pairs], [moment for _, moment in pairs]))
        for layer in waiting:
            layer.spans = [next(spans) for _ in layer.trackers]
        for beginning in beginnings:
            self._layers[beginning.weight.name] = beginning.layer
            beginning.layer.awaken()
        return {b.weight.name: b.layer.basis(b.weight, b.layer.spans, b.positions, b.reached) for b in beginnings}

    def _follow(self, samples: dict[str, _Sample], *, anew: bool = False) -> dict[str, InputBasis]:
        """One read for all layers; until it is done, nothing that is kept has changed. Second moments of `anew` are
        those of the sample alone.
        """
        devices: dict[torch.device, list[_Sample]] = {}
        for sample in samples.values():
            devices.setdefault(sample.total.device, []).append(sample)
        samples.clear()
        together = [self._drafts(own, anew=anew) for own in devices.values()]
        read = iter(on_host([part for drafts in together for part in _asked(drafts)]))
        judged = [pair for drafts in together for pair in zip(drafts, _verdicts(drafts, read), strict=True)]
        for draft, verdict in judged:
            require_finite(draft.sample.weight.name, verdict.diagonal + verdict.stray)
        return {draft.sample.weight.name: self._settled(draft, verdict) for draft, verdict in judged}

    def _drafts(self, samples: list[_Sample], *, anew: bool) -> list[_Draft]:
        """Refreshes of layers on one device; what is a number for each of them is computed for all at once."""
        latest = [mirrored(sample.total) for sample in samples]
        torch._foreach_div_(latest, [float(sample.positions) for sample in samples])
        drafts = [_Draft(*pair, self._layers.get(pair[0].weight.name)) for pair in zip(samples, latest, strict=True)]
        followed = [(draft, draft.layer) for draft in drafts if draft.layer is not None]
        if followed and not anew:
            self._blend(followed)
        # The largest first, so that none is left over for the end.
        followed.sort(key=lambda pair: -pair[0].latest.shape[-1])
        with SideStreams(latest[0].device) as sides:
            for i, (draft, layer) in enumerate(followed):
                draft.moment = draft.latest if draft.moment is None else draft.moment
                pairs = zip(layer.trackers, draft.moment, strict=True)
                with sides.piece(i):
                    draft.proposals = [tracker.propose(m, rounds=self.rounds + anew) for tracker, m in pairs]
        return drafts

    def _blend(self, followed: list[tuple[_Draft, _Layer]]) -> None:
        """Take the latest second moments into those that are kept."""
        rows = [draft.sample.some_rows() for draft, _ in followed]
        counts = [len(some) for some in rows]
        pairs = [(layer.spans, some) for (_, layer), some in zip(followed, rows, strict=True)]
        shares = _missed(pairs)
        each = torch.split(shares, counts)
        worst = shares if set(counts) == {1} else torch.stack([share.max() for share in each])
        weights = _blend_weights(worst, [layer.best for _, layer in followed], self.blend)
        weights = weights.to(followed[0][0].latest.dtype)
        for (draft, layer), missed, weight in zip(followed, each, weights.unbind(), strict=True):
            draft.missed = missed
            draft.moment = torch.lerp(layer.within.to(draft.latest), draft.latest, weight.to(draft.latest))

    def _settled(self, draft: _Draft, verdict: _Verdict) -> InputBasis:
        sample, layer = draft.sample, draft.layer
        weight = sample.weight
        if layer is None or draft.moment is None:
            layer = self._layers[weight.name] = _Layer(draft.latest, [self._tracker() for _ in draft.latest])
            return self._refreshed(layer, weight, sample.positions)
        if verdict.stray > 0:
            layer.widen()
            rows = sample.all_rows()
            missed = layer.missed_shares(_some(rows, share=1.0))
            layer.within = layer.blended(gram(rows).div_(sample.positions), missed, blend=self.blend)
            layer.note(missed.tolist())
            return self._refreshed(layer, weight, sample.positions)
        layer.within = draft.moment
        layer.note(verdict.missed)
        layer.spans = [
            tracker.refresh(moment) if proposal is None or numbers is None else tracker.settle(proposal, numbers)
            for tracker, moment, proposal, numbers in zip(
                layer.trackers, draft.moment, draft.proposals, verdict.numbers, strict=True
            )
        ]
        layer.awaken()
        return layer.basis(weight, layer.measured_blocks(), sample.positions, int((verdict.diagonal > 0).sum()))

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
    # The taps that are kept, where they are a rectangle.
    taps: Taps | None

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
        kept, others = ((mask.nonzero().flatten()).to(device) for mask in (some, ~some))
        return cls(len(some), kept, others, _rectangle(met.reshape(kernel_of(weight))))


def _rectangle(met: Tensor) -> Taps | None:
    """The rectangle that bool (rows, columns) marks, None where it marks something else."""
    down, across = met.any(1).nonzero().flatten().tolist(), met.any(0).nonzero().flatten().tolist()
    taps = Taps(down[0], down[-1] + 1, across[0], across[-1] + 1)
    return taps if bool(met[taps.top : taps.bottom, taps.left : taps.right].all()) else None


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
        return _missed([(self.spans, rows)])

    def blended(self, latest: Tensor, missed: Tensor, *, blend: float) -> Tensor:
        """The running second moment with the latest taken in."""
        weight = _blend_weights(missed.max().reshape(1), [self.best], blend)[0]
        return torch.lerp(self.within.to(latest), latest, weight.to(latest))

    def note(self, missed: list[float]) -> None:
        """What was missed of new inputs; nothing where all was forgotten that they could be new to."""
        self.missed = missed
        self.best = min(self.best, max(missed)) if missed else 1.0

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


class _Beginning(NamedTuple):
    """What a layer starts with, from so many inputs that reach so many of its coordinates."""

    weight: LinearWeight
    layer: _Layer
    positions: int
    reached: int


def _missed(pairs: Sequence[tuple[Sequence[AnySubspace], Tensor]]) -> Tensor:
    """The share of the energy of rows (groups, n, d) that the subspace of each group misses, for all groups of all."""
    each = [pair for spans, rows in pairs for pair in zip(spans, rows, strict=True)]
    return energy_shares([span.outside(rows) for span, rows in each], [rows for _, rows in each])


def _blend_weights(worst: Tensor, best: Sequence[float], blend: float) -> Tensor:
    """The weight of what was just seen for each of several layers, by the share it missed of that and its best."""
    least = torch.tensor(best, dtype=worst.dtype).to(worst.device, non_blocking=True)
    return torch.where(worst > 0, 1 - torch.minimum(worst, least) / worst, 0.0).clamp(min=blend)


class _Draft:
    """A refresh of one layer that is yet to be judged; `layer` is None where there is nothing to go on from."""

    def __init__(self, sample: _Sample, latest: Tensor, layer: _Layer | None) -> None:
        self.sample, self.latest = sample, latest
        self.layer = layer if layer is not None and layer.within.shape == latest.shape else None
        self.moment: Tensor | None = None
        self.missed: Tensor | None = None
        self.proposals: list[Proposal | None] = []

    @property
    def asked(self) -> list[Tensor]:
        """What has to be read of it alone: the diagonal of the second moment, the energy of coordinates never reached
        before, the shares missed, and the eigenvalues of columns that take turns.
        """
        diagonal = (self.latest if self.moment is None else self.moment).diagonal(dim1=1, dim2=2)
        sizes = [p.turned.sizes for p in self.proposals if p is not None]
        return [part for part in (diagonal, self.sample.stray, self.missed, *sizes) if part is not None]


@dataclass(frozen=True, eq=False)
class _Verdict:
    """What was read of a draft: the diagonal (groups, d), the energy of coordinates never reached before, the share
    that each group missed, and the numbers of its proposal.
    """

    diagonal: Tensor
    stray: float
    missed: list[float]
    numbers: list[Tensor | None]


def _asked(drafts: Sequence[_Draft]) -> list[Tensor]:
    proposals = [proposal for draft in drafts for proposal in draft.proposals if proposal is not None]
    return [part for draft in drafts for part in draft.asked] + (list(Proposal.judged(proposals)) if proposals else [])


def _verdicts(drafts: Sequence[_Draft], read: Iterator[Tensor]) -> list[_Verdict]:
    """What `_asked` asked for, in its order."""
    own = [[next(read) for _ in draft.asked] for draft in drafts]
    judged = any(proposal is not None for draft in drafts for proposal in draft.proposals)
    pairs = zip(next(read).unbind(), next(read).unbind(), strict=True) if judged else iter(())
    verdicts = []
    for draft, (diagonal, *parts) in zip(drafts, own, strict=True):
        rest = iter(parts)
        stray = 0.0 if draft.sample.stray is None else float(next(rest))
        missed = [] if draft.missed is None else next(rest).tolist()
        numbers: list[Tensor | None] = []
        for proposal, energies in zip(draft.proposals, diagonal, strict=False):
            if proposal is None:
                numbers.append(None)
                continue
            first = torch.stack([*next(pairs), energies.sum()])
            numbers.append(first if proposal.turned.sizes is None else torch.cat([first, next(rest)]))
        verdicts.append(_Verdict(diagonal, stray, missed, numbers))
    return verdicts


class _Sample:
    """Inputs of one weight: the sum of p pᵀ on and below the diagonal, how many, and some of them as they were.

    Where the layer keeps some `columns` alone, all is within those. `stray` is the largest number that was met in any
    of the others, None where the shapes of inputs say that there is none; all inputs are kept until it is known to be
    zero.
    """

    def __init__(self, weight: LinearWeight, columns: _Columns | None) -> None:
        self.weight, self.columns = weight, columns
        self.positions = 0
        self.stray: Tensor | None = None
        self._total: Tensor | None = None
        self._some: list[Tensor] = []
        self._every: list[tuple[Tensor, bool]] = []

    @property
    def total(self) -> Tensor:
        """The sum, (groups, d, d)."""
        assert self._total is not None
        return self._total

    def add(self, rows: Tensor, *, share: float, narrow: bool) -> None:
        """Take in rows (groups, n, d) of their own memory, which are not written to; `narrow` ones are within the
        columns.
        """
        rows = rows.to(torch.promote_types(self.weight.tensor.dtype, torch.float32))
        if self.columns is not None:
            self._every.append((rows, narrow))
            if not narrow:
                stray = rows.index_select(2, self.columns.others).abs().max()
                self.stray = stray if self.stray is None else torch.maximum(self.stray, stray)
                rows = rows.index_select(2, self.columns.kept)
        if self._total is None:
            self._total = gram(rows)
        else:
            add_gram(self._total, rows)
        self.positions += rows.shape[1]
        self._some.append(_some(rows, share=share))

    def some_rows(self) -> Tensor:
        return self._some[0] if len(self._some) == 1 else torch.cat(self._some, dim=1)

    def all_rows(self) -> Tensor:
        """All inputs in all coordinates."""
        return torch.cat([self._widened(rows) if narrow else rows for rows, narrow in self._every], dim=1)

    def _widened(self, rows: Tensor) -> Tensor:
        assert self.columns is not None
        wide = rows.new_zeros(*rows.shape[:2], self.columns.d)
        return wide.index_copy_(2, self.columns.kept, rows)


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
        sample = samples.get(weight.name)
        if sample is None:
            columns = known.get(weight.name)
            fits = columns is not None and columns.kept.device == x.device and columns.d == _width(weight)
            sample = samples[weight.name] = _Sample(weight, columns if fits else None)
        taps = _unreachable_beyond(sample.columns, layer, x)
        rows = input_rows(weight, sampled_rows(layer, x, patches, generator=draw, taps=taps))
        aliased = rows.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        sample.add(rows.clone() if aliased else rows, share=1 / len(parts), narrow=taps is not None)

    observe_inputs(model, parts, record)
    return samples


def _unreachable_beyond(columns: _Columns | None, layer: nn.Module, x: Tensor) -> Taps | None:
    """The taps that are kept, where the shape of the layer's input says that the others meet nothing but padding."""
    if columns is None or columns.taps is None or not isinstance(layer, nn.Conv1d | nn.Conv2d):
        return None
    return columns.taps if Window(layer).met_taps(x) == columns.taps else None


def _width(weight: LinearWeight) -> int:
    return weight.d + (weight.bias is not None)


def _some(rows: Tensor, *, share: float) -> Tensor:
    """As many of the rows (groups, n, d) as a share of the measure has room for."""
    room = max(1, int(share * _MEASURED / (rows.shape[0] * rows.shape[2])))
    return rows[:, :: -(-rows.shape[1] // room)]


def _joined(parts: list[Tensor]) -> list[Tensor]:
    """The same examples in batches of a good size, where they have one shape."""
    if len({part.shape[1:] for part in parts}) != 1:
        return parts
    size = _AT_A_TIME if parts[0].device.type == "cpu" else _AT_A_TIME_ELSEWHERE
    return list(torch.split(torch.cat(parts), size))
