"""One teleport of a model in place: proposed by a symmetry, judged on data, shortened or taken back, and certified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from math import isfinite
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..gradients.energy import gradient_energy
from ..models.full_precision import full_precision
from ..models.normalisation import norm_mode
from ..symmetry.certificate import (
    BRIEF,
    Certificate,
    Certify,
    Drift,
    Labelled,
    distance,
    distance_numbers,
    drift,
    drift_numbers,
    layer_moves,
    left_and_noted,
    logits_of_each,
    partly_reached,
    reached_weights,
    read_distances,
    read_drift,
)
from ..symmetry.channel_graph import PinnedChannels
from ..symmetry.compose import Compose
from ..symmetry.move import Move, Translation, apply_move
from ..symmetry.null_move import NullMove
from ..symmetry.null_space import NullSpace
from ..symmetry.symmetry import Probe, Symmetry, settings_of
from .judging import Judging
from .probing import JUDGES, View


@dataclass(frozen=True, eq=False)
class Teleporter:
    """Moves `model` by members of `symmetry`, away from the weights `reference`.

    A move after which the mean loss of the judges is more than `tolerance` above its value just before, or the mean
    loss of the forget examples more than the share `relearning` below it, is halved, at most `halvings` times, and
    taken back if that does not help; moves that are not shifts cannot be halved. A bound of None does not bind. A brief
    certificate is made of what that takes anyway, without looking at other examples or at single layers.
    """

    model: nn.Module
    symmetry: Symmetry
    reference: Mapping[str, Tensor]
    generator: torch.Generator
    tolerance: float | None = None
    relearning: float | None = None
    halvings: int = 4
    certify: Certify = "full"
    _judging: Judging = field(default_factory=Judging, init=False, repr=False)

    def teleport(self, view: View) -> tuple[Move | None, Certificate]:
        """The move that was made, or None where it was taken back, and its certificate; batch norm is in eval mode."""
        began = perf_counter()
        with norm_mode(self.model, "eval"):
            judged = _Judged.by(self.model, view, self._judging)
            others = _Others.by(self.model, view) if self.certify == "full" else None
            probe = Probe(view.batches, view.forget, self.reference)
            proposed = self.symmetry.move(self.model, generator=self.generator, probe=probe)
            before = _snapshot(self.model, proposed if self.certify == "brief" else None)
            known = isinstance(proposed, NullMove) and proposed.energies is not None
            energy = None if known else _energy(self.model, view.forget)
            made = self._settle(proposed, before, view, judged)
            energies = self._energies(proposed, made.scale, energy, view.forget)
            if others is None:
                return made.move, self._certify_briefly(view, before, proposed, made, energies, began)
            return made.move, self._certify(view, judged, others, before, proposed, made, energies, began)

    def _settle(self, move: Move, before: Mapping[str, Tensor], view: View, seen: _Judged) -> _Made:
        """Make the move, or the part of it that stays within bounds."""
        bound = self.tolerance is not None or self.relearning is not None
        # Without bounds nobody asks, unless it is for the certificate.
        asked = bound or self.certify == "brief"
        shift = _Shift.of(self.model, move, before) if isinstance(move, Translation) else None
        scale = 1.0
        for _ in range(self.halvings + 1 if shift is not None else 1):
            if shift is None:
                apply_move(self.model, move)
            else:
                shift.make(scale)
            drifts = seen.drifts(_Judged.by(self.model, view, self._judging), view) if asked else None
            if drifts is None or self._harmless(drifts):
                part = move.scaled(scale) if isinstance(move, Translation) and scale != 1 else move
                return _Made(part, scale, drifts)
            scale /= 2
        _restore(self.model, before)
        return _Made(None, 0.0, seen.drifts(seen, view) if self.certify == "brief" else None)

    def _harmless(self, drifts: _Drifts) -> bool:
        judges, forget = drifts
        if self.tolerance is not None and not judges.loss_change <= self.tolerance:
            return False
        if self.relearning is None or forget is None:
            return True
        return forget.loss_after >= (1 - self.relearning) * forget.loss_before

    def _energies(
        self, move: Move, scale: float, before: float | None, forget: Labelled | None
    ) -> tuple[float | None, float | None]:
        if isinstance(move, NullMove) and move.energies is not None and forget is not None:
            before, whole = (energy / len(forget[1]) for energy in move.energies)
            if scale in (0.0, 1.0):
                return before, whole if scale else before
            after = self.symmetry.energy_now(self.model, forget) if isinstance(self.symmetry, NullSpace) else None
            measured = None if after is None else float(after) / len(forget[1])
            if measured is not None and isfinite(measured):
                return before, measured
        return before, _energy(self.model, forget)

    def _certify(
        self,
        view: View,
        judged: _Judged,
        others: _Others,
        before: Mapping[str, Tensor],
        move: Move,
        made: _Made,
        energies: tuple[float | None, float | None],
        began: float,
    ) -> Certificate:
        reached = reached_weights(self.model, move, view.batches[:1])
        after = self.model.state_dict()
        names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        moved, unreached = distance(after, before, names, reached)
        norm, _ = distance(before, {n: torch.zeros_like(before[n]) for n in names}, names, reached)
        now_others = _Others.by(self.model, view)
        drifts = (
            judged.drifts(_Judged.by(self.model, view, self._judging), view) if made.drifts is None else made.drifts
        )
        held_out = drifts.judges
        if others.held_out is not None and now_others.held_out is not None and view.validation is not None:
            held_out = drift(others.held_out, now_others.held_out, view.validation[1])
        left, notes = left_and_noted(move)
        notes = (*notes, *_unmeasured(energies, view))
        return Certificate(
            symmetry=type(self.symmetry).__name__,
            settings=settings_of(self.symmetry),
            scale=made.scale,
            retain=drift(others.retain, now_others.retain, view.retain[1][:JUDGES]),
            held_out=held_out,
            forget=drifts.forget,
            energy_before=energies[0],
            energy_after=energies[1],
            moved=moved,
            moved_unreached=unreached,
            norm=norm,
            distance_before=distance(before, self.reference, names, reached)[0],
            distance_after=distance(after, self.reference, names, reached)[0],
            layers=layer_moves(_named_once(self.model, before), after, move, reached),
            left=left,
            pinned=_pinned(self.symmetry, self.model, Probe(view.batches)),
            notes=notes,
            seconds=perf_counter() - began,
        )

    def _certify_briefly(
        self,
        view: View,
        before: Mapping[str, Tensor],
        move: Move,
        made: _Made,
        energies: tuple[float | None, float | None],
        began: float,
    ) -> Certificate:
        after = {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad}
        names = list(after)
        reached = partly_reached(move, after)
        if reached is None:
            reached = reached_weights(self.model, move, view.batches[:1])
        old = {name: before.get(name, value) for name, value in after.items()}
        far = read_distances(distance_numbers(old, after, self.reference, names, reached).cpu())
        left, notes = left_and_noted(move)
        assert made.drifts is not None
        return Certificate(
            symmetry=type(self.symmetry).__name__,
            settings=settings_of(self.symmetry),
            scale=made.scale,
            retain=made.drifts.judges,
            held_out=None,
            forget=made.drifts.forget,
            energy_before=energies[0],
            energy_after=energies[1],
            moved=far.moved,
            moved_unreached=far.moved_unreached,
            norm=far.norm,
            distance_before=far.distance_before,
            distance_after=far.distance_after,
            layers=(),
            left=left,
            pinned=(),
            notes=(*notes, *_unmeasured(energies, view), BRIEF),
            seconds=perf_counter() - began,
        )


class _Drifts(NamedTuple):
    """What became of the judges, and of the forget examples where there are some."""

    judges: Drift
    forget: Drift | None


class _Made(NamedTuple):
    """The move that was made, or None where it was taken back, the share of the proposed one that it is, and what was
    seen of it.
    """

    move: Move | None
    scale: float
    drifts: _Drifts | None


@dataclass(frozen=True, eq=False)
class _Judged:
    """Logits of the judges and of the forget examples at one moment."""

    judges: Tensor
    forget: Tensor | None

    @classmethod
    def by(cls, model: nn.Module, view: View, judging: Judging) -> _Judged:
        sets = [view.judges[0]] if view.forget is None else [view.judges[0], view.forget[0]]
        judges, *forget = judging.logits(model, sets)
        return cls(judges, forget[0] if forget else None)

    def drifts(self, after: _Judged, view: View) -> _Drifts:
        """Both compared with what they are later, in one read."""
        judges = drift_numbers(self.judges, after.judges, view.judges[1])
        if self.forget is None or after.forget is None or view.forget is None:
            return _Drifts(read_drift(judges.cpu(), len(view.judges[1])), None)
        read = torch.stack([judges, drift_numbers(self.forget, after.forget, view.forget[1])]).cpu()
        return _Drifts(read_drift(read[0], len(view.judges[1])), read_drift(read[1], len(view.forget[1])))


@dataclass(frozen=True, eq=False)
class _Others:
    """Logits of examples that the symmetry looked at, and of held-out ones where there are some, at one moment."""

    retain: Tensor
    held_out: Tensor | None

    @classmethod
    def by(cls, model: nn.Module, view: View) -> _Others:
        sets = [view.retain[0][:JUDGES]] + ([] if view.validation is None else [view.validation[0]])
        with full_precision():
            retain, *held_out = logits_of_each(model, sets)
        return cls(retain, held_out[0] if held_out else None)


def _unmeasured(energies: tuple[float | None, float | None], view: View) -> tuple[str, ...]:
    if None in energies and view.forget is not None:
        return ("gradient energies could not be measured on this network",)
    return ()


def _energy(model: nn.Module, forget: Labelled | None) -> float | None:
    """Mean squared gradient norm, or None where there is nothing to measure or the network does not allow it."""
    if forget is None:
        return None
    try:
        with torch.no_grad():
            return float(gradient_energy(model, *forget).double().mean())
    except InputError:
        return None


def _pinned(symmetry: Symmetry, model: nn.Module, probe: Probe) -> tuple[PinnedChannels, ...]:
    """What every part of a symmetry that can say so found pinned."""
    if isinstance(symmetry, Compose):
        return tuple(pinned for part in symmetry.symmetries for pinned in _pinned(part, model, probe))
    return tuple(symmetry.report(model, probe=probe).pinned) if hasattr(symmetry, "report") else ()


def _named_once(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state under the first name of every tensor: a tied weight has several."""
    names = {name for name, _ in chain(model.named_parameters(), model.named_buffers())}
    return {name: value for name, value in state.items() if name in names}


def _snapshot(model: nn.Module, move: Move | None) -> dict[str, Tensor]:
    """What the model holds, by name: for a shift what it changes, for any other move, and without one, all of it."""
    state = model.state_dict()
    if isinstance(move, Translation):
        return {name: state[name].detach().clone() for name in move.shifts if name in state}
    return {name: value.detach().clone() for name, value in state.items()}


@dataclass(frozen=True, eq=False)
class _Shift:
    """Tensors of a model, what they were, and by how much a move shifts them."""

    tensors: list[Tensor]
    before: list[Tensor]
    shifts: list[Tensor]

    @classmethod
    def of(cls, model: nn.Module, move: Translation, before: Mapping[str, Tensor]) -> _Shift:
        state = model.state_dict(keep_vars=True)
        names = [name for name in move.shifts if name in state]
        shifts = [move.shifts[name].to(state[name]) for name in names]
        return cls([state[name] for name in names], [before[name] for name in names], shifts)

    @torch.no_grad()
    def make(self, scale: float) -> None:
        """Shift the tensors by so much of the move from where they were."""
        if self.tensors:
            torch._foreach_copy_(self.tensors, self.before)
            torch._foreach_add_(self.tensors, self.shifts, alpha=scale)


@torch.no_grad()
def _restore(model: nn.Module, before: Mapping[str, Tensor]) -> None:
    state = model.state_dict(keep_vars=True)
    if before:
        torch._foreach_copy_([state[name] for name in before], list(before.values()))
