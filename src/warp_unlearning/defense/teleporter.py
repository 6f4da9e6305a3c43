"""One teleport of a model in place: proposed by a symmetry, judged on data, shortened or taken back, and certified."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..collection import collection_put_off
from ..errors import InputError
from ..gradients.energy import gradient_energy
from ..linalg.on_host import on_host
from ..models.normalisation import norm_mode
from ..module_tree import parameters_by_name
from ..symmetry.certificate import (
    Certificate,
    Certify,
    Distances,
    Labelled,
    drift_numbers,
    read_distances,
    read_drift,
)
from ..symmetry.halving import longest_that_does
from ..symmetry.move import Move, Translation, apply_move
from ..symmetry.null_move import NullMove
from ..symmetry.null_space import NullSpace
from ..symmetry.symmetry import Probe, Symmetry
from .certifying import Drifts, Others, Teleported, known_distances
from .judging import Judging
from .probing import View
from .stopwatch import Stopwatch


@dataclass(frozen=True, eq=False)
class Teleporter:
    """Moves `model` by members of `symmetry`, away from the weights `reference`.

    A move after which the mean loss of the judges is more than `tolerance` above its value just before, or the mean
    loss of the forget examples more than the share `relearning` below it, is halved, at most `halvings` times, and
    taken back if that does not help; moves that are not shifts cannot be halved. Trials begin at twice the length that
    did no harm the last time. A bound of None does not bind. A brief certificate is made of what that takes anyway,
    without looking at other examples or at single layers. Where more teleports are to come (`repeated`), the first
    makes ready what they repeat.
    """

    model: nn.Module
    symmetry: Symmetry
    reference: Mapping[str, Tensor]
    tolerance: float | None = None
    relearning: float | None = None
    halvings: int = 4
    certify: Certify = "full"
    repeated: bool = False
    _judging: Judging = field(default_factory=Judging, init=False, repr=False)

    def teleport(self, view: View, *, generator: torch.Generator) -> tuple[Move | None, Certificate]:
        """The move that was made, or None where it was taken back, and its certificate; batch norm is in eval mode."""
        device = view.judges[0].device
        watch = Stopwatch(device)
        # On a GPU a collection of garbage may take longer than all of it.
        with nullcontext() if device.type == "cpu" else collection_put_off(), norm_mode(self.model, "eval"):
            judged = _Judged.by(self.model, view, self._judging)
            others = Others.by(self.model, view) if self.certify == "full" else None
            probe = Probe(view.batches, view.forget, self.reference)
            proposed = self.symmetry.move(self.model, generator=generator, probe=probe)
            before = _snapshot(self.model, proposed if self.certify == "brief" else None)
            known = isinstance(proposed, NullMove) and proposed.energies is not None
            energy = None if known else _energy(self.model, view.forget)
            made = self._settle(proposed, before, view, judged)
            energies = self._energies(proposed, made, energy, view.forget)
            if self.repeated:
                self._judging.make_ready(self.model, _judged_inputs(view))
            drifts = made.drifts
            if drifts is None:
                drifts = judged.drifts(_Judged.by(self.model, view, self._judging), view)
            done = Teleported(
                self.model, self.symmetry, self.reference, view, before, proposed, made.scale, drifts, energies
            )
            return made.move, done.briefly(watch, made.far) if others is None else done.fully(others, watch)

    def _settle(self, move: Move, before: Mapping[str, Tensor], view: View, seen: _Judged) -> _Made:
        """Make the move, or the longest part of it found that stays within bounds."""
        bound = self.tolerance is not None or self.relearning is not None
        # Without bounds nobody asks, unless it is for the certificate.
        asked = bound or self.certify == "brief"
        shift = _Shift.of(self.model, move, before) if isinstance(move, Translation) else None

        known: dict[int, _Made] = {}

        def launched(halved: int) -> tuple[_Made, _Look | None]:
            scale = 0.5**halved
            if shift is None:
                apply_move(self.model, move)
            else:
                shift.make(scale)
            part = move.scaled(scale) if isinstance(move, Translation) and halved else move
            # A longer part than did no harm the last time will do some, most of the time: all else of it can wait.
            likely = halved >= self._judging.halved
            look = self._look(move, scale, before, view, seen, likely=likely) if asked else None
            return _Made(part, scale, None, halved=halved), look

        def tried(halved: int) -> _Made:
            if halved not in known:
                # Where the next is likely to do, a GPU looks at it meanwhile: to read twice takes longer than to look.
                both = asked and halved + 1 == self._judging.halved and self._judging.at_once
                each = [launched(number) for number in ((halved, halved + 1) if both else (halved,))]
                known.update((made.halved, made) for made in _read_all(each))
            return known[halved]

        halvings = self.halvings if shift is not None else 0
        made = longest_that_does(tried, self._harmless, halvings=halvings, before=self._judging.halved)
        if shift is not None:
            self._judging.halved = halvings if made is None else made.halved
        if made is None:
            _restore(self.model, before)
            return _Made(None, 0.0, seen.drifts(seen, view) if self.certify == "brief" else None)
        if shift is not None:
            # A longer part may have been tried since.
            shift.make(made.scale)
        return made

    def _look(
        self, move: Move, scale: float, before: Mapping[str, Tensor], view: View, seen: _Judged, *, likely: bool
    ) -> _Look:
        """What the move that was made did, not read; and where it is `likely` to be kept, how far it went, for a brief
        certificate, and the energy it led to, if these are known without looking again: so that a GPU is given the one
        while it does the other.
        """
        after = _Judged.by(self.model, view, self._judging)
        brief = likely and self.certify == "brief"
        far = known_distances(self.model, self.reference, before, move) if brief else None
        energy = self._energy_of_part(move, scale, view.forget) if likely else None
        return _Look(seen.numbers(after, view), far, energy, partial(seen.read, view=view))

    def _energy_of_part(self, move: Move, scale: float, forget: Labelled | None) -> Tensor | None:
        """Σᵢ ‖∇ℓᵢ‖² after a part of a move, where that of the whole is known, not read; None where no graph has it."""
        known = isinstance(move, NullMove) and move.energies is not None
        if not known or forget is None or scale in (0.0, 1.0) or not isinstance(self.symmetry, NullSpace):
            return None
        return self.symmetry.energy_now(self.model, forget)

    def _harmless(self, made: _Made) -> bool:
        if made.drifts is None:
            return True
        judges, forget = made.drifts
        if self.tolerance is not None and not judges.loss_change <= self.tolerance:
            return False
        if self.relearning is None or forget is None:
            return True
        return forget.loss_after >= (1 - self.relearning) * forget.loss_before

    def _energies(
        self, move: Move, made: _Made, before: float | None, forget: Labelled | None
    ) -> tuple[float | None, float | None]:
        if isinstance(move, NullMove) and move.energies is not None and forget is not None:
            before, whole = (energy / len(forget[1]) for energy in move.energies)
            if made.scale in (0.0, 1.0):
                return before, whole if made.scale else before
            after = made.energy
            if after is None:
                later = self._energy_of_part(move, made.scale, forget)
                after = None if later is None else float(later)
            if after is not None and isfinite(after):
                return before, after / len(forget[1])
        return before, _energy(self.model, forget)


class _Made(NamedTuple):
    """The move that was made, or None where it was taken back, the share of the proposed one that it is, what was seen
    of it, how far it went and the summed energy it led to, where these were read with it, and how often it was halved.
    """

    move: Move | None
    scale: float
    drifts: Drifts | None
    far: Distances | None = None
    energy: float | None = None
    halved: int = 0


class _Look(NamedTuple):
    """Numbers of the drifts, how far the move went and the summed energy, the latter two where they were asked for, all
    of them not read; and what makes drifts of the numbers.
    """

    numbers: list[Tensor]
    far: Tensor | None
    energy: Tensor | None
    drifts: Callable[[Sequence[Tensor]], Drifts]

    @property
    def tensors(self) -> list[Tensor]:
        """All of it."""
        return [*self.numbers, *(part for part in (self.far, self.energy) if part is not None)]

    def told(self, made: _Made, read: Sequence[Tensor]) -> _Made:
        """What was made, with what was read of `tensors`."""
        rest = iter(read[len(self.numbers) :])
        return made._replace(
            drifts=self.drifts(read[: len(self.numbers)]),
            far=None if self.far is None else read_distances(next(rest)),
            energy=None if self.energy is None else float(next(rest)),
        )


def _read_all(each: Sequence[tuple[_Made, _Look | None]]) -> list[_Made]:
    """What was made, each with what was seen of it, by one read."""
    read = iter(on_host([tensor for _, look in each if look is not None for tensor in look.tensors]))
    return [made if look is None else look.told(made, [next(read) for _ in look.tensors]) for made, look in each]


@dataclass(frozen=True, eq=False)
class _Judged:
    """Logits of the judges and of the forget examples at one moment."""

    judges: Tensor
    forget: Tensor | None

    @classmethod
    def by(cls, model: nn.Module, view: View, judging: Judging) -> _Judged:
        judges, *forget = judging.logits(model, _judged_inputs(view))
        return cls(judges, forget[0] if forget else None)

    def drifts(self, after: _Judged, view: View) -> Drifts:
        """Both compared with what they are later, in one read."""
        return self.read(on_host(self.numbers(after, view)), view)

    def numbers(self, after: _Judged, view: View) -> list[Tensor]:
        """What `read` makes the comparison of, not read."""
        numbers = [drift_numbers(self.judges, after.judges, view.judges[1])]
        if self.forget is not None and after.forget is not None and view.forget is not None:
            numbers.append(drift_numbers(self.forget, after.forget, view.forget[1]))
        return numbers

    def read(self, numbers: Sequence[Tensor], view: View) -> Drifts:
        """The comparison by its numbers, on the host, which others may follow."""
        judges = read_drift(numbers[0], len(view.judges[1]))
        if self.forget is None or view.forget is None:
            return Drifts(judges, None)
        return Drifts(judges, read_drift(numbers[1], len(view.forget[1])))


def _judged_inputs(view: View) -> list[Tensor]:
    return [view.judges[0]] if view.forget is None else [view.judges[0], view.forget[0]]


def _energy(model: nn.Module, forget: Labelled | None) -> float | None:
    """Mean squared gradient norm, or None where there is nothing to measure or the network does not allow it."""
    if forget is None:
        return None
    try:
        with torch.no_grad():
            return float(gradient_energy(model, *forget).double().mean())
    except InputError:
        return None


def _snapshot(model: nn.Module, move: Move | None) -> dict[str, Tensor]:
    """What the model holds, by name: for a shift what it changes, for any other move, and without one, all of it."""
    if isinstance(move, Translation):
        shifted = _shifted(model, move)
        kept = [torch.empty_like(value) for value in shifted.values()]
        if kept:
            with torch.no_grad():
                torch._foreach_copy_(kept, list(shifted.values()))
        return dict(zip(shifted, kept, strict=True))
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _shifted(model: nn.Module, move: Translation) -> dict[str, Tensor]:
    """The tensors of a model that a shift changes, by name. It names parameters, most of the time, which are found
    several times as fast as all that a model holds.
    """
    named: Mapping[str, Tensor] = parameters_by_name(model)
    if not move.shifts.keys() <= named.keys():
        named = model.state_dict(keep_vars=True)
    return {name: named[name] for name in move.shifts if name in named}


@dataclass(eq=False)
class _Shift:
    """Tensors of a model, what they were, by how much a move shifts them, and how much of that was made."""

    tensors: list[Tensor]
    before: list[Tensor]
    shifts: list[Tensor]
    made: float = 0.0

    @classmethod
    def of(cls, model: nn.Module, move: Translation, before: Mapping[str, Tensor]) -> _Shift:
        tensors = _shifted(model, move)
        shifts = [move.shifts[name].to(tensor) for name, tensor in tensors.items()]
        return cls(list(tensors.values()), [before[name] for name in tensors], shifts)

    @torch.no_grad()
    def make(self, scale: float) -> None:
        """Shift the tensors by so much of the move from where they were."""
        if self.tensors and self.made != scale:
            self.made = scale
            torch._foreach_copy_(self.tensors, self.before)
            torch._foreach_add_(self.tensors, self.shifts, alpha=scale)


@torch.no_grad()
def _restore(model: nn.Module, before: Mapping[str, Tensor]) -> None:
    state = model.state_dict(keep_vars=True)
    if before:
        torch._foreach_copy_([state[name] for name in before], list(before.values()))
