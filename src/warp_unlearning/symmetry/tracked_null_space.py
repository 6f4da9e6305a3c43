"""Null-space moves whose bases follow the model instead of being decomposed anew at every move."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..waiting import with_work
from .forget_energy import ForgetEnergy, ReplayedEnergy
from .input_bases import InputBasis
from .null_space import NullSpace
from .steps import RepeatedSteps
from .tracked_bases import TrackedBases


@dataclass(kw_only=True)
class TrackedNullSpace(NullSpace):
    """`NullSpace` with `rounds` of subspace iteration on sampled inputs in place of every decomposition but the first.

    It remembers the bases of the network it last moved, so use one object for one network; a defence works on a copy.
    """

    rounds: int = 1
    _tracked: TrackedBases = field(init=False, repr=False, compare=False)
    _ready_for: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._tracked = TrackedBases(self.energy, rule=self.rule, rounds=self.rounds)

    def input_bases(
        self, model: nn.Module, batches: Sequence[Tensor], *, generator: torch.Generator
    ) -> dict[str, InputBasis]:
        """The bases of every layer's inputs, refreshed from those of the move before."""
        replay = self._remembered.sample_of(model)
        return self._tracked.refresh(model, batches, generator=generator, replay=replay)

    def _meanwhile(self, energy: ForgetEnergy) -> AbstractContextManager[None]:
        """Beside the first bases, which are decomposed, energies are captured: the host has little else to do."""
        if isinstance(energy, ReplayedEnergy) and not energy.graph.captured:
            return with_work(self._remembered.capture_energy)
        return super()._meanwhile(energy)

    def _walks_again(self) -> RepeatedSteps:
        """Bases that are followed keep their ranks, more or less, and so steps can be captured graphs."""
        return self._remembered.walks

    def _make_ready(self, batches: Sequence[Tensor]) -> None:
        """After bases that were decomposed: whoever tracks them has moves to come, and what these repeat is captured
        now, so that none of them takes longer than the others.
        """
        walks = self._remembered.walks
        if self._ready_for == self._tracked.exact_builds:
            # Once may be an exception.
            walks.capture(after=2)
            return
        self._ready_for = self._tracked.exact_builds
        self._remembered.capture_energy()
        asking = self._tracked.asks_next(batches)
        if asking is not None:
            self._remembered.capture_sample(asking)
        self._tracked.make_ready()
        walks.capture()
