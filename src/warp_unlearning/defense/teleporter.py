"""One teleport of a model in place: drawn, checked on data, kept or taken back, certified. `Warp` and `Conjugate`
decide when and call `teleport_on`; `teleport` is for a user with a model and no unlearning.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from time import perf_counter

import torch
from torch import Tensor, nn

from ..data.examples import Examples, TensorExamples, as_examples
from ..errors import InputError, WarpWarning
from ..gpu.precision import full_precision
from ..gradients.energy import total_energy
from ..methods.base import Task
from ..models.modes import norm_mode
from ..models.own import check_examples, check_network, failed
from ..randomness import Streams, whole
from ..symmetry.base import Probe, Sizes, Symmetry, require_symmetry
from ..symmetry.moves import Move, apply_move
from ..symmetry.null_space import NullMove
from ..training.scoring import checked_logits
from .certificate import STAYED, Certificate, Drift, certified, drift

Labelled = tuple[Tensor, Tensor]
State = Mapping[str, Tensor]

# Most retain examples that judge a move, and most validation examples: enough to see the mean loss to a few hundredths
# of its spread, and a small part of what the bases cost.
JUDGES = VALIDATION = 512
# Retain and forget examples of a certificate where the symmetry looks at none itself.
EXAMPLES = 256
# Inputs that run through the network at once: to observe layers (on a GPU more, for fewer launches), and for logits.
BATCH, _ENTRIES_ON_GPU, _LOGITS_BATCH = 256, 2**23, 512
# Retain examples of the view on which logits before and after are compared.
_COMPARED = 512


@dataclass(frozen=True, eq=False)
class View:
    """The examples of one teleport: `retain` and `forget` are shown to the symmetry; `judges` are retain examples that
    it has not seen, or the same if there are fewer than five; `validation` is held-out data, if any.
    """

    retain: Labelled
    judges: Labelled
    forget: Labelled | None
    validation: Labelled | None

    @property
    def batches(self) -> tuple[Tensor, ...]:
        """The retain inputs in batches."""
        x = self.retain[0]
        size = BATCH if x.device.type == "cpu" else max(BATCH, _ENTRIES_ON_GPU * len(x) // max(1, x.numel()))
        return torch.split(x, size)

    @property
    def comparison_sets(self) -> dict[str, Labelled]:
        """The sets on which logits before and after the teleport are compared, by name."""
        x, y = self.retain
        sets = {"judges": self.judges, "forget": self.forget, "validation": self.validation}
        retain = {"retain": (x[:_COMPARED], y[:_COMPARED])}
        return retain | {name: pair for name, pair in sets.items() if pair is not None}


def draw_view(
    retain: Examples, forget: Examples | None, validation: Examples | None, sizes: Sizes, *, generator: torch.Generator
) -> View:
    """Draw examples for one teleport: at most a fifth of the retain set as judges, and of its rest and of the forget
    set as many as the symmetry looks at (`sizes`).
    """
    order = torch.randperm(len(retain), generator=generator)
    judge_count = min(JUDGES, len(retain) // 5)
    shown = retain.take(order[judge_count : judge_count + (sizes.retain or EXAMPLES)])

    def sample(examples: Examples | None, count: int) -> Labelled | None:
        """At most `count` random examples; None without a set."""
        if examples is None:
            return None
        return examples.take(torch.randperm(len(examples), generator=generator)[:count])

    return View(
        retain=shown,
        judges=retain.take(order[:judge_count]) if judge_count else shown,
        forget=sample(forget, sizes.forget or EXAMPLES),
        validation=sample(validation, VALIDATION),
    )


@dataclass(eq=False)
class Teleporter:
    """Moves `model` by members of `symmetry`, away from the weights `reference`, and keeps a certificate of each move.

    A move is taken back if it raises the mean loss of the judges by more than `tolerance`, or lowers the mean loss of
    the forget examples by more than the share `relearning`. None is no bound.
    """

    model: nn.Module
    symmetry: Symmetry
    reference: State
    tolerance: float | None = None
    relearning: float | None = None
    certificates: list[Certificate] = field(default_factory=list, init=False)

    @classmethod
    def during(cls, task: Task, model: nn.Module, symmetry: Symmetry, **bounds: float | None) -> Teleporter:
        """A teleporter for one unlearning, away from the original's weights, with its own copy of the symmetry."""
        reference = {name: value.detach() for name, value in task.original.state_dict().items()}
        return cls(model, deepcopy(symmetry), reference, **bounds)

    def teleport_on(self, task: Task, streams: Streams) -> Move | None:
        """Teleport on examples of the task, the k-th time with the draws of `streams.of(k)`; None if taken back."""
        draws, sizes = streams.of(len(self.certificates)), self.symmetry.looks_at
        view = draw_view(task.retain, task.forget, task.validation, sizes, generator=draws.generator("view"))
        return self.teleport(view, generator=draws.generator("move"))[0]

    def teleport(self, view: View, *, generator: torch.Generator) -> tuple[Move | None, Certificate]:
        """Move the model in place; put the old weights back if losses exceed the bounds, or on an error.

        Returns the move (None if taken back) and its certificate. Batch norm stays in eval mode.
        """
        model, started = self.model, _synchronised_time(view)
        with norm_mode(model, "eval"):
            before = {name: value.detach().clone() for name, value in model.state_dict().items()}
            try:
                move, certificate = self._moved_and_certified(view, before, generator)
            except BaseException:
                _restore(model, before)
                raise
        notes = (*certificate.notes, *self._notes_on(view))
        certificate = replace(certificate, notes=notes, seconds=_synchronised_time(view) - started)
        self._warn_if_most_stayed(certificate)
        self.certificates.append(certificate)
        return move, certificate

    def _moved_and_certified(
        self, view: View, before: State, generator: torch.Generator
    ) -> tuple[Move | None, Certificate]:
        """Draw a move, make it, take it back to `before` if it does harm, and certify what was done.

        An energy is the sum of squared gradient norms over the view's forget examples.
        """
        model, sets = self.model, view.comparison_sets
        logits_before = _logits_by_set(model, sets)
        probe = Probe(view.batches, view.forget, self.reference)
        move = self.symmetry.move(model, generator=generator, probe=probe)
        # A null-space move has measured both energies on its way.
        measured_energies = move.forget_energies if isinstance(move, NullMove) else None
        energy_before = measured_energies[0] if measured_energies else _forget_energy(model, view)
        apply_move(model, move)
        drifts = _drifts(logits_before, _logits_by_set(model, sets), sets)
        harm = self._harm(drifts)
        if harm is None:
            energy_after = measured_energies[1] if measured_energies else _forget_energy(model, view)
        else:
            _restore(model, before)
            energy_after, drifts = energy_before, _drifts(logits_before, logits_before, sets)
        certificate = certified(
            model,
            self.symmetry,
            move,
            harm=harm,
            before=before,
            reference=self.reference,
            batches=view.batches,
            drifts=drifts,
            energies=None if energy_before is None or energy_after is None else (energy_before, energy_after),
        )
        return move if harm is None else None, certificate

    def _notes_on(self, view: View) -> list[str]:
        """Sentences for the certificate where the view has fewer retained examples than it should."""
        wanted, available, notes = self.symmetry.looks_at.retain, len(view.retain[1]), []
        if available < wanted:
            notes.append(f"looked at {available} retained examples of the {wanted} asked for: there are no more")
        if view.judges is view.retain:
            notes.append("fewer than five retained examples: the move is judged by those that it was built from")
        return notes

    def _harm(self, drifts: Mapping[str, Drift]) -> str | None:
        """The bound that a move exceeds, as a sentence; None where it keeps both."""
        rise, forget, relearning = drifts["judges"].loss_change, drifts.get("forget"), self.relearning
        # Written so that a loss of NaN is beyond both bounds.
        if self.tolerance is not None and not rise <= self.tolerance:
            return f"the loss of unseen retained examples rose by {rise:.3g}, and tolerance is {self.tolerance}"
        if forget is None or relearning is None or forget.loss_after >= (1 - relearning) * forget.loss_before:
            return None
        fall = 1 - forget.loss_after / forget.loss_before
        return f"the loss of examples to forget fell by {fall:.1%}, and relearning is {relearning}"

    def _warn_if_most_stayed(self, certificate: Certificate) -> None:
        """Warn at the first certificate which notes that most parameters stayed where they were."""
        stayed = [note for note in certificate.notes if STAYED in note]
        if stayed and not any(STAYED in note for earlier in self.certificates for note in earlier.notes):
            warnings.warn(
                f"{certificate.symmetry} does little on this network: {stayed[0]}. Another symmetry may reach these, "
                "several by Compose(...), or a null space at a lower energy",
                WarpWarning,
                stacklevel=2,
            )


def teleport(
    model: nn.Module,
    symmetry: Symmetry,
    *,
    retain: object,
    forget: object | None = None,
    reference: nn.Module | State | None = None,
    seed: int | None = None,
) -> tuple[nn.Module, Certificate]:
    """A copy of `model` moved along `symmetry`, and the certificate of the move.

    `retain` are examples whose outputs are to stay, `forget` those whose gradients a null-space move makes small; each
    is a pair of tensors (x, y), a `Dataset` of such pairs, or a `DataLoader`. `reference` are the weights an attacker
    holds, from which distances are taken: those of `model` unless given. The move is drawn from the operating system's
    entropy; `seed` fixes it for experiments, and then anybody who knows it can undo it.
    """
    require_symmetry(symmetry)
    check_network(model)
    if seed is not None:
        seed = whole(seed)
    moved = deepcopy(model)
    first = next(moved.parameters())
    given = {"retain": retain} if forget is None else {"retain": retain, "forget": forget}
    sets: dict[str, Examples] = {name: as_examples(each, what=name).to(first.device) for name, each in given.items()}
    check_examples(moved, sets)
    first_batch = sets["retain"].take(torch.arange(min(BATCH, len(sets["retain"]))))
    checked_logits(moved, TensorExamples(*first_batch), "retain")
    streams = Streams.secret(seed)
    view = draw_view(sets["retain"], sets.get("forget"), None, symmetry.looks_at, generator=streams.generator("view"))
    teleporter = Teleporter(moved, deepcopy(symmetry), _attacker_weights(model, reference))
    try:
        return moved, teleporter.teleport(view, generator=streams.generator("move"))[1]
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise failed(error, "moved") from error


def _attacker_weights(model: nn.Module, given: nn.Module | State | None) -> State:
    """Copies of the weights an attacker holds, from which distances are measured: `given`, else the model's own."""
    state = model.state_dict()
    weights = state if given is None else given.state_dict() if isinstance(given, nn.Module) else given
    if missing := [n for n, v in state.items() if n not in weights or weights[n].shape != v.shape]:
        raise InputError(
            f"the reference has no {missing[0]} of shape {tuple(state[missing[0]].shape)}; "
            "give the weights of the same architecture"
        )
    return {name: weights[name].detach().to(value, copy=True) for name, value in state.items()}


@torch.no_grad()
def _logits_by_set(model: nn.Module, sets: Mapping[str, Labelled]) -> dict[str, Tensor]:
    """The logits on each set, to be compared before and after a move; not rounded to TF32."""
    with full_precision():
        batches = {name: torch.split(x, _LOGITS_BATCH) for name, (x, _) in sets.items()}
        return {name: torch.cat([model(batch) for batch in parts]) for name, parts in batches.items()}


def _drifts(before: State, after: State, sets: Mapping[str, Labelled]) -> dict[str, Drift]:
    """How far the function changed on each set, from its logits before and after the move."""
    return {name: drift(before[name], after[name], y) for name, (_, y) in sets.items()}


def _forget_energy(model: nn.Module, view: View) -> float | None:
    """Σᵢ ‖∇ℓᵢ‖² over the view's forget examples; None without any, or where it cannot be measured."""
    return None if view.forget is None else total_energy(model, *view.forget)


@torch.no_grad()
def _restore(model: nn.Module, before: State) -> None:
    """Put back the weights and buffers from before the move."""
    for name, value in model.state_dict(keep_vars=True).items():
        value.copy_(before[name])


def _synchronised_time(view: View) -> float:
    """The time in seconds, once the view's GPU has finished what is queued."""
    x = view.judges[0]
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    return perf_counter()
