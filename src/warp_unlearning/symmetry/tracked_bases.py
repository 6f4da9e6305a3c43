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
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..linalg.co_subspace import AnySubspace
from ..linalg.gram import add_gram, mirrored
from ..linalg.subspace import Rule
from ..linalg.tracked import TrackedSubspace
from .input_bases import InputBasis, ObservedRows, exact_bases, input_rows, observed_rows, require_finite
from .layer_inputs import observe_inputs
from .linear_weights import LinearWeight
from .sampled_inputs import sampled_examples, sampled_rows

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
        return self._follow(_sampled(model, batches, self.examples, self.patches, generator))

    def start(self, seen: dict[str, ObservedRows]) -> dict[str, InputBasis]:
        """The exact bases of inputs already summed up, which `seen` gives up one by one; the next refresh follows."""
        for name, observed in seen.items():
            require_finite(name, observed.rows.energy())
        self.exact_builds += 1
        self._layers = {}
        return {name: self._start(seen.pop(name)) for name in list(seen)}

    def _lost(self) -> bool:
        return any(layer.misses(more_than=self.restart, of=1 - self.energy) for layer in self._layers.values())

    def _tracker(self) -> TrackedSubspace:
        return TrackedSubspace(self.energy, rule=self.rule, rounds=self.rounds, slack=self.slack)

    def _start(self, observed: ObservedRows) -> InputBasis:
        weight, rows = observed.weight, observed.rows
        alive = rows.energy() > 0
        trackers = [self._tracker() for _ in range(rows.groups)]
        moment = rows.second_moment() / rows.positions
        if rows.positions > rows.d:
            blocks = [tracker.refresh(m) for tracker, m in zip(trackers, moment, strict=True)]
        else:
            exact = rows.subspaces(self.energy, rule=self.rule)
            blocks = [t.adopt(s, a) for t, s, a in zip(trackers, exact, alive, strict=True)]
        self._layers[weight.name] = _Layer(moment, trackers, blocks)
        return _basis(weight, blocks, alive, rows.positions)

    def _follow(self, samples: dict[str, _Sample]) -> dict[str, InputBasis]:
        for name, sample in samples.items():
            require_finite(name, sample.total.diagonal(dim1=1, dim2=2))
        return {name: self._follow_one(samples.pop(name)) for name in list(samples)}

    def _follow_one(self, sample: _Sample) -> InputBasis:
        weight, latest = sample.weight, mirrored(sample.total).div_(sample.positions)
        layer = self._layers.get(weight.name)
        if layer is None or layer.moment.shape != latest.shape:
            layer = self._layers[weight.name] = _Layer(latest, [self._tracker() for _ in latest])
        else:
            layer.take_in(latest, sample.some_rows(), blend=self.blend)
        layer.blocks = [tracker.refresh(m) for tracker, m in zip(layer.trackers, layer.moment, strict=True)]
        reached = layer.moment.diagonal(dim1=1, dim2=2) > 0
        return _basis(weight, layer.measured_blocks(), reached, sample.positions)


@dataclass
class _Layer:
    """What is kept of one weight: its running second moment (groups, d, d), a mean over inputs; a tracker for each
    group and the subspace it last gave.

    `missed` is the share of new inputs' energy that each of them missed at the last refresh; `best` is the smallest
    that the worst of them ever missed.
    """

    moment: Tensor
    trackers: list[TrackedSubspace]
    blocks: list[AnySubspace] = field(default_factory=list)
    missed: list[float] = field(default_factory=list)
    best: float = 1.0

    def take_in(self, latest: Tensor, rows: Tensor, *, blend: float) -> None:
        self.missed = [block.missed(some) for block, some in zip(self.blocks, rows, strict=True)]
        worst = max(self.missed)
        self.best = min(self.best, worst)
        grown = 1 - self.best / worst if worst else 0.0
        self.moment = self.moment.to(latest).lerp_(latest, max(blend, grown))

    def measured_blocks(self) -> list[AnySubspace]:
        if not self.missed:
            return self.blocks
        return [replace(block, captured=1 - share) for block, share in zip(self.blocks, self.missed, strict=True)]

    def misses(self, *, more_than: float, of: float) -> bool:
        return bool(self.missed) and max(self.missed) > more_than * max(self.best, of)


@dataclass
class _Sample:
    """Inputs of one weight: the sum of p pᵀ on and below the diagonal, how many, and some of them as they were."""

    weight: LinearWeight
    total: Tensor
    positions: int = 0
    some: list[Tensor] = field(default_factory=list)

    def add(self, rows: Tensor, *, share: float) -> None:
        rows = rows.to(self.total.dtype)
        add_gram(self.total, rows)
        self.positions += rows.shape[1]
        room = max(1, int(share * _MEASURED / (self.total.shape[0] * self.total.shape[1])))
        self.some.append(rows[:, :: -(-rows.shape[1] // room)].clone())

    def some_rows(self) -> Tensor:
        return torch.cat(self.some, dim=1)


def _sampled(
    model: nn.Module, batches: Iterable[Tensor], examples: int, patches: int, generator: torch.Generator
) -> dict[str, _Sample]:
    samples: dict[str, _Sample] = {}
    parts = _joined(sampled_examples(batches, examples, generator=generator))

    def record(weight: LinearWeight, layer: nn.Module, x: Tensor) -> None:
        rows = input_rows(weight, sampled_rows(layer, x, patches, generator=generator))
        if weight.name not in samples:
            kind = torch.promote_types(weight.tensor.dtype, torch.float32)
            groups, _, d = rows.shape
            samples[weight.name] = _Sample(weight, torch.zeros(groups, d, d, dtype=kind, device=rows.device))
        samples[weight.name].add(rows, share=1 / len(parts))

    observe_inputs(model, parts, record)
    return samples


def _joined(parts: list[Tensor]) -> list[Tensor]:
    """The same examples in batches of a good size, where they have one shape."""
    if len({part.shape[1:] for part in parts}) != 1:
        return parts
    return list(torch.split(torch.cat(parts), _AT_A_TIME))


def _basis(weight: LinearWeight, blocks: Sequence[AnySubspace], reached: Tensor, positions: int) -> InputBasis:
    kind = torch.promote_types(weight.tensor.dtype, torch.float32)
    return InputBasis(weight.name, weight.bias, tuple(block.to(kind) for block in blocks), reached, positions)
