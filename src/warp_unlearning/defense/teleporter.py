"""One teleport of a model in place: proposed by a symmetry, judged on data, shortened or taken back, and certified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import InputError
from ..gradients.energy import gradient_energy
from ..models.full_precision import full_precision
from ..models.normalisation import norm_mode
from ..symmetry.certificate import (
    Certificate,
    Drift,
    Labelled,
    distance,
    drift,
    layer_moves,
    left_and_noted,
    logits_of,
    reached_weights,
)
from ..symmetry.channel_graph import PinnedChannels
from ..symmetry.compose import Compose
from ..symmetry.move import Move, Translation, apply_move
from ..symmetry.null_move import NullMove
from ..symmetry.symmetry import Probe, Symmetry, settings_of
from .probing import JUDGES, View


@dataclass(frozen=True, eq=False)
class Teleporter:
    """Moves `model` by members of `symmetry`, away from the weights `reference`.

    A move after which the mean loss of the judges is more than `tolerance` above its value just before, or the mean
    loss of the forget examples more than the share `relearning` below it, is halved, at most `halvings` times, and
    taken back if that does not help; moves that are not shifts cannot be halved. A bound of None does not bind.
    """

    model: nn.Module
    symmetry: Symmetry
    reference: Mapping[str, Tensor]
    generator: torch.Generator
    tolerance: float | None = None
    relearning: float | None = None
    halvings: int = 4

    def teleport(self, view: View) -> tuple[Move | None, Certificate]:
        """The move that was made, or None where it was taken back, and its certificate; batch norm is in eval mode."""
        began = perf_counter()
        with norm_mode(self.model, "eval"):
            before = _state(self.model)
            seen = _Seen.by(self.model, view)
            probe = Probe(view.batches, view.forget, self.reference)
            proposed = self.symmetry.move(self.model, generator=self.generator, probe=probe)
            known = isinstance(proposed, NullMove) and proposed.energies is not None
            energy = None if known else _energy(self.model, view.forget)
            move, scale = self._settle(proposed, before, view, seen)
            energies = self._energies(proposed, scale, energy, view.forget)
            return move, self._certify(view, seen, before, proposed, scale, energies, began)

    def _settle(self, move: Move, before: Mapping[str, Tensor], view: View, seen: _Seen) -> tuple[Move | None, float]:
        """Make the move, or the part of it that stays within bounds; and the share that was made."""
        scale = 1.0
        for _ in range(self.halvings + 1 if isinstance(move, Translation) else 1):
            part = move.scaled(scale) if isinstance(move, Translation) and scale != 1 else move
            apply_move(self.model, part)
            if self._harmless(view, seen):
                return part, scale
            _restore(self.model, before)
            scale /= 2
        return None, 0.0

    def _harmless(self, view: View, seen: _Seen) -> bool:
        if self.tolerance is not None:
            rise = _loss(logits_of(self.model, view.judges[0]), view.judges) - _loss(seen.judges, view.judges)
            if not rise <= self.tolerance:
                return False
        if self.relearning is not None and view.forget is not None and seen.forget is not None:
            known = _loss(seen.forget, view.forget)
            if not _loss(logits_of(self.model, view.forget[0]), view.forget) >= (1 - self.relearning) * known:
                return False
        return True

    def _energies(
        self, move: Move, scale: float, before: float | None, forget: Labelled | None
    ) -> tuple[float | None, float | None]:
        if isinstance(move, NullMove) and move.energies is not None and forget is not None:
            before, whole = (energy / len(forget[1]) for energy in move.energies)
            if scale in (0.0, 1.0):
                return before, whole if scale else before
        return before, _energy(self.model, forget)

    def _certify(
        self,
        view: View,
        seen: _Seen,
        before: Mapping[str, Tensor],
        move: Move,
        scale: float,
        energies: tuple[float | None, float | None],
        began: float,
    ) -> Certificate:
        reached = reached_weights(self.model, move, view.batches[:1])
        after = self.model.state_dict()
        names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        moved, unreached = distance(after, before, names, reached)
        norm, _ = distance(before, {n: torch.zeros_like(before[n]) for n in names}, names, reached)
        now = _Seen.by(self.model, view)
        left, notes = left_and_noted(move)
        if None in energies and view.forget is not None:
            notes = (*notes, "gradient energies could not be measured on this network")
        return Certificate(
            symmetry=type(self.symmetry).__name__,
            settings=settings_of(self.symmetry),
            scale=scale,
            retain=drift(seen.retain, now.retain, view.retain[1][:JUDGES]),
            held_out=_drift(seen.held_out, now.held_out, view.validation or view.judges),
            forget=_drift(seen.forget, now.forget, view.forget),
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


@dataclass(frozen=True, eq=False)
class _Seen:
    """Logits of a view at one moment."""

    retain: Tensor
    judges: Tensor
    held_out: Tensor
    forget: Tensor | None

    @classmethod
    def by(cls, model: nn.Module, view: View) -> _Seen:
        with full_precision():
            judges = logits_of(model, view.judges[0])
            return cls(
                logits_of(model, view.retain[0][:JUDGES]),
                judges,
                judges if view.validation is None else logits_of(model, view.validation[0]),
                None if view.forget is None else logits_of(model, view.forget[0]),
            )


def _drift(before: Tensor | None, after: Tensor | None, examples: Labelled | None) -> Drift | None:
    if before is None or after is None or examples is None:
        return None
    return drift(before, after, examples[1])


def _loss(logits: Tensor, examples: Labelled) -> float:
    return float(F.cross_entropy(logits.double(), examples[1]))


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


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


@torch.no_grad()
def _restore(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    for name, value in model.state_dict(keep_vars=True).items():
        value.copy_(state[name])
