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

from collections.abc import Iterable, Sequence
from sys import maxsize

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..linalg.gram import gram
from ..linalg.subspace import Rule
from ..linalg.tracked import TrackedSubspace, start_all
from ..waiting import work_meanwhile
from .exact_start import beginning, decompose
from .input_bases import InputBasis, ObservedRows, energies_of, exact_bases, may_round, observed_rows
from .kept_columns import KeptColumns
from .refresh_draft import Draft, drafted, make_ready
from .refresh_verdict import Verdict, judged
from .sampled_moment import Asking, Replay, SampledMoment, sampled_moments, sampled_parts, some_of
from .tracked_layer import TrackedLayer

# A look at all examples is a look at this part of the patches of each.
_FEWER_PATCHES = 8


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
        self._layers: dict[str, TrackedLayer] = {}

    def refresh(
        self,
        model: nn.Module,
        batches: Iterable[Tensor],
        *,
        generator: torch.Generator,
        replay: Replay | None = None,
    ) -> dict[str, InputBasis]:
        """The bases for the model as it stands (put it in eval mode), by weight name; the model is left unchanged.

        After the first call, the captured energy is what a basis held of the inputs just seen before it took them in:
        an honest figure for inputs it was not made from, and on the low side. A weight first seen in a later call
        starts from the sample. An energy of 1 is a span that no blend could follow: it is exact every time. A `replay`
        for the model may take the place of the pass over a random part.
        """
        if self.energy == 1:
            self.exact_builds += 1
            return exact_bases(model, batches, energy=self.energy, rule=self.rule)
        if not self._layers or self._lost(max(self.afar, self.restart)):
            rounded = may_round(self.energy, self.rule)
            return self.start(observed_rows(model, batches, rounded=rounded, dtype=None, met=True))
        known = self._known()
        if not self._lost(self.restart):
            seen = sampled_moments(model, batches, self.examples, self.patches, generator, known, replay=replay)
            return self._follow(seen)
        self.renewals += 1
        patches = -(-self.patches // _FEWER_PATCHES)
        return self._follow(sampled_moments(model, batches, maxsize, patches, generator, known), anew=True)

    def asks_next(self, batches: Iterable[Tensor]) -> Asking | None:
        """What the next refresh asks a `replay` for if it follows, with any examples; None where nothing is kept."""
        if not self._layers:
            return None
        # Whose they are is not of importance, and the generators of refreshes go on as if this had not been asked.
        draw = torch.Generator().manual_seed(0)
        return Asking(sampled_parts(batches, self.examples, generator=draw), self.patches, self._known())

    def make_ready(self) -> None:
        """Have what the next refresh repeats captured, where that is possible."""
        make_ready(self._layers)

    def start(self, seen: dict[str, ObservedRows]) -> dict[str, InputBasis]:
        """The exact bases of inputs already summed up, which `seen` gives up one by one; the next refresh follows."""
        energies = energies_of(seen)
        self.exact_builds += 1
        self._layers = {}
        # Together on a GPU; elsewhere one after the other, so that what was summed up of each can go before the next.
        together = bool(seen) and next(iter(seen.values())).weight.tensor.device.type != "cpu"
        found: dict[str, InputBasis] = {}
        for names in [list(seen)] if together else [[name] for name in seen]:
            begun = [beginning(seen.pop(name), energies[name] > 0, self._tracker) for name in names]
            decompose(begun)
            self._layers |= {each.weight.name: each.layer for each in begun}
            found |= {each.weight.name: each.basis() for each in begun}
        return found

    def _known(self) -> dict[str, KeptColumns]:
        return {name: layer.columns for name, layer in self._layers.items() if layer.columns is not None}

    def _lost(self, growth: float) -> bool:
        return any(layer.misses(more_than=growth, of=1 - self.energy) for layer in self._layers.values())

    def _tracker(self) -> TrackedSubspace:
        return TrackedSubspace(self.energy, rule=self.rule, rounds=self.rounds, slack=self.slack)

    def _follow(self, samples: dict[str, SampledMoment], *, anew: bool = False) -> dict[str, InputBasis]:
        """One read for all layers; until it is done, nothing that is kept has changed. Second moments of `anew` are
        those of the sample alone.
        """
        # A GPU has the samples to find, so that the host may launch something else before what needs them.
        work_meanwhile()
        devices: dict[torch.device, list[SampledMoment]] = {}
        for sample in samples.values():
            devices.setdefault(sample.total.device, []).append(sample)
        blend, rounds = (None, self.rounds + 1) if anew else (self.blend, self.rounds)
        together = [drafted(own, self._layers, blend=blend, rounds=rounds) for own in devices.values()]
        drafts = judged(together)
        bases = {
            draft.sample.weight.name: self._refreshed(draft)
            for draft, verdict in drafts
            if draft.layer is None or draft.moment is None or verdict.stray > 0
        }
        followed = [pair for pair in drafts if pair[0].sample.weight.name not in bases]
        _settle(followed)
        bases |= {draft.sample.weight.name: _followed_basis(draft, verdict) for draft, verdict in followed}
        return {draft.sample.weight.name: bases[draft.sample.weight.name] for draft, _ in drafts}

    def _refreshed(self, draft: Draft) -> InputBasis:
        """The basis of a layer that was not met before, or whose inputs are in coordinates that it did not keep."""
        sample, layer = draft.sample, draft.layer
        weight = sample.weight
        if layer is None or draft.moment is None:
            # What was sampled may be overwritten by the next sample, and this stays.
            latest = draft.latest.clone()
            layer = self._layers[weight.name] = TrackedLayer(latest, [self._tracker() for _ in latest])
        else:
            self._widen(layer, sample, anew=draft.missed is None)
        return layer.refreshed(weight, sample.positions)

    def _widen(self, layer: TrackedLayer, sample: SampledMoment, *, anew: bool) -> None:
        """Take the sample in where it has inputs in coordinates that the layer did not keep."""
        layer.widen()
        rows = sample.all_rows()
        latest = gram(rows).div_(sample.positions)
        if anew:
            layer.within = latest
            layer.note([])
            return
        missed = layer.missed_shares(some_of(rows, share=1.0))
        layer.within = layer.blended(latest, missed, blend=self.blend)
        layer.note(missed.tolist())


def _settle(followed: Sequence[tuple[Draft, Verdict]]) -> None:
    """Take what was drafted in. Subspaces that take a decomposition have theirs side by side, once all are known."""
    waiting: list[tuple[TrackedLayer, int]] = []
    for draft, verdict in followed:
        layer, moment = draft.layer, draft.moment
        assert layer is not None
        assert moment is not None
        layer.within = moment
        layer.note(verdict.missed)
        found = [
            tracker.refresh(moment[group])
            if proposal is None or numbers is None
            else tracker.settled(proposal, numbers)
            for group, (tracker, proposal, numbers) in enumerate(
                zip(layer.trackers, draft.proposals, verdict.numbers, strict=True)
            )
        ]
        waiting += [(layer, group) for group, span in enumerate(found) if span is None]
        layer.spans = [old if span is None else span for old, span in zip(layer.spans, found, strict=True)]
    begun = start_all(
        [layer.trackers[group] for layer, group in waiting], [layer.within[group] for layer, group in waiting]
    )
    for (layer, group), span in zip(waiting, begun, strict=True):
        layer.spans[group] = span


def _followed_basis(draft: Draft, verdict: Verdict) -> InputBasis:
    layer = draft.layer
    assert layer is not None
    layer.awaken()
    return layer.basis(draft.sample.weight, layer.measured_blocks(), draft.sample.positions, verdict.reached)
