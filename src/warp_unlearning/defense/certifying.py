"""The certificate of one teleport: a full one, or a brief one of what the teleport takes anyway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..models.full_precision import full_precision
from ..module_tree import parameters_by_name
from ..symmetry.certificate import (
    BRIEF,
    Certificate,
    Distances,
    Drift,
    distance,
    distance_numbers,
    drift,
    layer_moves,
    left_and_noted,
    logits_of_each,
    partly_reached,
    reached_weights,
    read_distances,
)
from ..symmetry.channel_graph import PinnedChannels
from ..symmetry.compose import Compose
from ..symmetry.move import Move
from ..symmetry.symmetry import Probe, Symmetry, settings_of
from .probing import JUDGES, View
from .stopwatch import Stopwatch


class Drifts(NamedTuple):
    """What became of the judges, and of the forget examples where there are some."""

    judges: Drift
    forget: Drift | None


@dataclass(frozen=True, eq=False)
class Others:
    """Logits of examples that the symmetry looked at, and of held-out ones where there are some, at one moment."""

    retain: Tensor
    held_out: Tensor | None

    @classmethod
    def by(cls, model: nn.Module, view: View) -> Others:
        """Those of the model as it stands."""
        sets = [view.retain[0][:JUDGES]] + ([] if view.validation is None else [view.validation[0]])
        with full_precision():
            retain, *held_out = logits_of_each(model, sets)
        return cls(retain, held_out[0] if held_out else None)


@dataclass(frozen=True, eq=False)
class Teleported:
    """A teleport of `model`, which stands where that left it, away from the weights `reference`.

    `before` is what the model held, by name, all of it for a full certificate. The share `scale` of the `proposed` move
    was made, 0 where it was taken back. `energies` are the mean squared gradient norms of the forget examples before
    and after, None where they were not measured.
    """

    model: nn.Module
    symmetry: Symmetry
    reference: Mapping[str, Tensor]
    view: View
    before: Mapping[str, Tensor]
    proposed: Move
    scale: float
    drifts: Drifts
    energies: tuple[float | None, float | None]

    def fully(self, others: Others, watch: Stopwatch) -> Certificate:
        """With `others` as they were before it; `watch` runs since the teleport began."""
        before, move = self.before, self.proposed
        reached = reached_weights(self.model, move, self.view.batches[:1])
        after = self.model.state_dict()
        names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        moved, unreached = distance(after, before, names, reached)
        norm, _ = distance(before, {n: torch.zeros_like(before[n]) for n in names}, names, reached)
        now_others = Others.by(self.model, self.view)
        held_out = self.drifts.judges
        if others.held_out is not None and now_others.held_out is not None and self.view.validation is not None:
            held_out = drift(others.held_out, now_others.held_out, self.view.validation[1])
        left, notes = left_and_noted(move)
        notes = (*notes, *_unmeasured(self.energies, self.view), *_frozen_moved(parameters_by_name(self.model), before))
        return Certificate(
            symmetry=type(self.symmetry).__name__,
            settings=settings_of(self.symmetry),
            scale=self.scale,
            retain=drift(others.retain, now_others.retain, self.view.retain[1][:JUDGES]),
            held_out=held_out,
            forget=self.drifts.forget,
            energy_before=self.energies[0],
            energy_after=self.energies[1],
            moved=moved,
            moved_unreached=unreached,
            norm=norm,
            distance_before=distance(before, self.reference, names, reached)[0],
            distance_after=distance(after, self.reference, names, reached)[0],
            layers=layer_moves(_named_once(self.model, before), after, move, reached),
            left=left,
            pinned=_pinned(self.symmetry, self.model, Probe(self.view.batches)),
            notes=notes,
            seconds=watch.seconds(),
        )

    def briefly(self, watch: Stopwatch, far: Distances | None = None) -> Certificate:
        """Without looking at other examples or at single layers; `far` is how far it went, where that was read."""
        before, move = self.before, self.proposed
        every = parameters_by_name(self.model)
        if far is None:
            numbers = known_distances(self.model, self.reference, before, move)
            if numbers is None:
                reached = reached_weights(self.model, move, self.view.batches[:1])
                numbers = _distances(every, self.reference, before, reached)
            far = read_distances(numbers.cpu())
        left, notes = left_and_noted(move)
        return Certificate(
            symmetry=type(self.symmetry).__name__,
            settings=settings_of(self.symmetry),
            scale=self.scale,
            retain=self.drifts.judges,
            held_out=None,
            forget=self.drifts.forget,
            energy_before=self.energies[0],
            energy_after=self.energies[1],
            moved=far.moved,
            moved_unreached=far.moved_unreached,
            norm=far.norm,
            distance_before=far.distance_before,
            distance_after=far.distance_after,
            layers=(),
            left=left,
            pinned=(),
            notes=(*notes, *_unmeasured(self.energies, self.view), *_frozen_moved(every, before), BRIEF),
            seconds=watch.seconds(),
        )


def known_distances(
    model: nn.Module, reference: Mapping[str, Tensor], before: Mapping[str, Tensor], move: Move
) -> Tensor | None:
    """What `read_distances` makes of it how far the model, as it stands, is from what it held `before` and from the
    `reference`, not read; None where the move does not say which weights inputs reach.
    """
    every = parameters_by_name(model)
    reached = partly_reached(move, every)
    return None if reached is None else _distances(every, reference, before, reached)


@torch.no_grad()
def _distances(
    parameters: Mapping[str, nn.Parameter],
    reference: Mapping[str, Tensor],
    before: Mapping[str, Tensor],
    reached: Mapping[str, Tensor],
) -> Tensor:
    after: dict[str, Tensor] = {name: p for name, p in parameters.items() if p.requires_grad}
    old = {name: before.get(name, value) for name, value in after.items()}
    return distance_numbers(old, after, reference, list(after), reached)


def _unmeasured(energies: tuple[float | None, float | None], view: View) -> tuple[str, ...]:
    if None in energies and view.forget is not None:
        return ("gradient energies could not be measured on this network",)
    return ()


def _frozen_moved(parameters: Mapping[str, nn.Parameter], before: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Said of parameters that no training would change: a symmetry that keeps the function needs them all."""
    frozen = {name: p for name, p in parameters.items() if not p.requires_grad and name in before}
    moved = [name for name, p in frozen.items() if not torch.equal(p, before[name])]
    if not moved:
        return ()
    others = f" and {len(moved) - 1} more" if len(moved) > 1 else ""
    return (f"frozen parameters moved with the others: {moved[0]}{others}",)


def _pinned(symmetry: Symmetry, model: nn.Module, probe: Probe) -> tuple[PinnedChannels, ...]:
    """What every part of a symmetry that can say so found pinned."""
    if isinstance(symmetry, Compose):
        return tuple(pinned for part in symmetry.symmetries for pinned in _pinned(part, model, probe))
    return tuple(symmetry.report(model, probe=probe).pinned) if hasattr(symmetry, "report") else ()


def _named_once(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state under the first name of every tensor: a tied weight has several."""
    names = {name for name, _ in chain(model.named_parameters(), model.named_buffers())}
    return {name: value for name, value in state.items() if name in names}
