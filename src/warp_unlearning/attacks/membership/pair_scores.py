"""Scores of candidates by every attack on an original and several other models, in one pass over the candidates.

The gradients of a batch at the original are computed once for all attacks, models and pre-steps: S states of the other
models cost 1 + S passes. Which test rows are candidates, and which are left to the attacker, is decided here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...data.examples import TensorExamples
from ...errors import DataError, InputError, nearest, reason
from ...gpu.precision import full_precision
from ...models.own import load_function
from ...stats.verdict import Needs
from ...unlearning.checks import check_disjoint, copies_of
from ..undo import make_pre_step
from ..undo.base import CachedState, Held, NotApplicable, undone_model
from .base import NAIVE, Attack, Batch, Fitted, Pair, checked_score, compared_parameters, gradient_copy
from .gradient_difference import GradientDifference, algorithm_ggd
from .gradient_rows import held_at_once, row_bytes, rows_at_once
from .simple import Accuracy, Confidence, ConfidenceDrop, GradientNorm
from .update_alignment import UpdateAlignment

Floats = NDArray[np.float64]
Job = tuple[str, str]  # a model and a pre-step
ORIGINAL = "original"
# Of the test set, what the background may take at most, and what may have copies in a retain set, as natural data do.
_SHARE, _BY_CHANCE = 3, 0.01
# Examples at once for attacks that hold no gradients, on a CPU and elsewhere.
_AT_ONCE, _AT_ONCE_ELSEWHERE = 256, 1024
# Of what is free on a GPU: a batch of candidates exists twice at once, and the largest parameter's part of it again.
_BATCH = 1 / 8


ATTACKS: dict[str, Callable[[], Attack]] = {
    "accuracy": Accuracy,
    "confidence": Confidence,
    "gradient norm": GradientNorm,
    "confidence drop": ConfidenceDrop,
    "gradient difference": GradientDifference,
    "update alignment": UpdateAlignment,
    "ggd": algorithm_ggd,
}
# The paper's attack ranks nearly as the gradient difference does, and costs as much again.
DEFAULT = tuple(name for name in ATTACKS if name != "ggd")


def register(name: str, make: Callable[[], Attack]) -> None:
    """Let `name` mean the attack that a class, or a function, makes without arguments."""
    if name in ATTACKS:
        raise InputError(f"there is an attack {name!r} already; register yours under another name")
    ATTACKS[name] = make


def as_attack(attack: str | Attack) -> Attack:
    """An attack from its name, from FILE.py:Class, or as it is."""
    found: object = attack
    if isinstance(attack, str):
        own = ".py:" in attack
        if not own and attack not in ATTACKS:
            raise InputError(f"there is no attack {attack!r}; {nearest(attack, ATTACKS)}, or give FILE.py:Class")
        make = load_function(attack, what="attack") if own else ATTACKS[attack]
        try:
            found = make()
        except Exception as error:
            raise InputError(f"the attack {attack} cannot be made without arguments ({reason(error)})") from error
    name, needs = getattr(found, "name", None), getattr(found, "needs", None)
    if isinstance(found, type):
        raise InputError(f"the attack {attack!r} is a class; give an object of it, with `name`, `needs` and `score`")
    there = {"name": isinstance(name, str), "needs": needs is not None}
    there |= {"score": callable(getattr(found, "score", None))}
    if lacks := [f"`{what}`" for what, is_there in there.items() if not is_there]:
        raise InputError(f"the attack {attack!r} is a {type(found).__name__} without {' and '.join(lacks)}; add it")
    if needs not in get_args(Needs):
        raise InputError(f"the attack {name} needs {needs!r}; it must be one of {', '.join(get_args(Needs))}")
    return found  # type: ignore[return-value]


@dataclass(frozen=True, eq=False)
class PairScores:
    """The scores (n,) of one attack after one pre-step, by model; "original" among them for attacks on one model."""

    attack: Attack
    step: str
    scores: dict[str, Floats]

    @property
    def name(self) -> str:
        """The attack and its pre-step, if it has one: "update alignment after span"."""
        return self.attack.name if self.step == NAIVE else f"{self.attack.name} after {self.step}"


class PairScorer:
    """An attacker who holds `original`, and examples: `background`, which no model has seen, and `probes`, drawn as the
    training data were. `row_name` names a candidate in errors.
    """

    def __init__(
        self,
        original: nn.Module,
        *,
        candidates: TensorExamples,
        background: TensorExamples,
        probes: TensorExamples,
        row_name: Callable[[int], str] = "candidate {}".format,
    ) -> None:
        self._given, self._row_name = original, row_name
        self._candidates, self._background, self._probes = candidates, background, probes

    def score(
        self,
        models: Mapping[str, nn.Module],
        attacks: Sequence[Attack],
        *,
        steps: Sequence[str] = (NAIVE,),
        logits: Mapping[str, Tensor] | None = None,
    ) -> tuple[list[PairScores], dict[str, str]]:
        """The scores of every model under every attack, those on both weights after each of `steps`; and what was not
        tried, with the reason. `logits` are those of the candidates, by model, where they are known.
        """
        plain = [a for a in attacks if a.needs != "both weights"]
        weighing = [a for a in attacks if a.needs == "both weights"]
        not_tried: dict[str, str] = {}
        found = self._plainly(models, plain, logits or {}, not_tried) if plain else []
        if weighing:
            with full_precision():
                found += self._by_weights(models, weighing, steps, not_tried)
        return found, not_tried

    @cached_property
    def _original(self) -> nn.Module:
        return gradient_copy(self._given, compared_parameters(self._given))

    @cached_property
    def _held(self) -> Held:
        return Held(self._original, (self._probes.x, self._probes.y))

    def _plainly(
        self,
        models: Mapping[str, nn.Module],
        attacks: Sequence[Attack],
        logits: Mapping[str, Tensor],
        not_tried: dict[str, str],
    ) -> list[PairScores]:
        copies = {name: _in_eval(model) for name, model in {ORIGINAL: self._given, **models}.items()}
        original, held = copies[ORIGINAL], (self._background, self._probes)
        pairs = {(name, NAIVE): Pair(original, model, *held) for name, model in copies.items()}
        known = {copies[name]: z for name, z in logits.items()}
        size = _AT_ONCE if self._candidates.x.device.type == "cpu" else _AT_ONCE_ELSEWHERE
        parts = self._pass(pairs, attacks, size, not_tried, known)
        tried = [a for a in attacks if a.name not in not_tried]
        same = {name: (name, NAIVE) for name in copies}
        return [self._collected(a, NAIVE, parts, same) for a in tried]

    def _by_weights(
        self,
        models: Mapping[str, nn.Module],
        attacks: Sequence[Attack],
        steps: Sequence[str],
        not_tried: dict[str, str],
    ) -> list[PairScores]:
        states = self._states(models, steps, not_tried)
        first: dict[Job, Job] = {}
        for job, state in states.items():
            alike = (one for one in first.values() if one[0] == job[0] and state.is_same(states[one]))
            first[job] = next(alike, job)
        size = rows_at_once(row_bytes(self._original), self._candidates.y.device, share=_BATCH)
        parts: dict[tuple[str, Job], list[Tensor]] = {}
        held = (self._background, self._probes)
        for group in self._groups(list(dict.fromkeys(first.values())), attacks):
            undone = {job: undone_model(self._original, states[job]) for job in group}
            pairs = {job: Pair(self._original, new, *held, job[1], states[job]) for job, new in undone.items()}
            for attack in attacks:
                if isinstance(attack, Fitted):
                    attack.fit(list(pairs.values()))
            parts |= self._pass(pairs, attacks, size, not_tried, {})
        return [
            self._collected(attack, step, parts, {name: first[name, step] for name in models})
            for attack in attacks
            for step in steps
            if attack.name not in not_tried and f"after {step}" not in not_tried
        ]

    def _pass(
        self,
        pairs: Mapping[Job, Pair],
        attacks: Sequence[Attack],
        size: int,
        not_tried: dict[str, str],
        known: Mapping[nn.Module, Tensor],
    ) -> dict[tuple[str, Job], list[Tensor]]:
        """Scores by attack and job, batch by batch; an attack that does not apply to one model is tried on none."""
        found: dict[tuple[str, Job], list[Tensor]] = {}
        original = next(iter(pairs.values())).original
        for begin in range(0, len(self._candidates), size):
            at = slice(begin, begin + size)
            batch = Batch(
                self._candidates.x[at], self._candidates.y[at], original, {m: z[at] for m, z in known.items()}
            )
            for job, pair in pairs.items():
                for attack in attacks:
                    # An attack on both models has nothing to see in the original and itself.
                    if attack.name in not_tried or (job[0] == ORIGINAL and attack.needs.startswith("both")):
                        continue
                    try:
                        found.setdefault((attack.name, job), []).append(checked_score(attack, pair, batch))
                    except NotApplicable as error:
                        not_tried[attack.name] = str(error)
        return found

    def _collected(
        self, attack: Attack, step: str, parts: Mapping[tuple[str, Job], list[Tensor]], jobs: Mapping[str, Job]
    ) -> PairScores:
        """The scores of each model, which are those of the job that it equals."""
        known = {model: parts[attack.name, job] for model, job in jobs.items() if (attack.name, job) in parts}
        found = PairScores(attack, step, {model: torch.cat(part).numpy() for model, part in known.items()})
        for model, scores in found.scores.items():
            wrong = np.flatnonzero(~np.isfinite(scores))
            if wrong.size:
                why = "the weights are damaged or the loss overflows: use finite weights, or leave out those rows"
                if not type(attack).__module__.startswith("warp_unlearning."):
                    why = "mend the `score` of this attack, or leave out those rows"
                raise InputError(
                    f"the attack {found.name} gives {self._row_name(int(wrong[0]))} under the {model} model the score "
                    f"{scores[wrong[0]]}, as {wrong.size} rows in all; {why}"
                )
        return found

    def _states(
        self, models: Mapping[str, nn.Module], steps: Sequence[str], not_tried: dict[str, str]
    ) -> dict[Job, CachedState]:
        """The weights of each model after each pre-step, of steps that apply to all."""
        given = {name: CachedState(model.state_dict()) for name, model in models.items()}
        found: dict[Job, CachedState] = {}
        for step in [(name, make_pre_step(name)) for name in steps]:
            try:
                undo = self._held.prepared(step[1])
                found |= {(name, step[0]): state.after(undo) for name, state in given.items()}
            except NotApplicable as error:
                not_tried[f"after {step[0]}"] = str(error)
        return found

    def _groups(self, jobs: list[Job], attacks: Sequence[Attack]) -> Iterator[list[Job]]:
        """The jobs in groups whose fits can be held together."""
        fits = [a.fit_bytes(len(self._background), row_bytes(self._original)) for a in attacks if isinstance(a, Fitted)]
        size = held_at_once(sum(fits), self._background.y.device) if fits else max(1, len(jobs))
        return (jobs[begin : begin + size] for begin in range(0, len(jobs), size))


def _in_eval(model: nn.Module) -> nn.Module:
    copy = deepcopy(model).eval()
    for p in copy.parameters():
        p.requires_grad_(p.is_floating_point())
    return copy


def unseen_rows(sets: Mapping[str, TensorExamples]) -> tuple[Tensor, tuple[str, ...]]:
    """Rows of the test set that no model was trained on, and a note of a few others, which may be there by chance."""
    forget, test, retain = sets["forget"], sets["test"], sets.get("retain")
    overlap = copies_of(forget, test)
    if len(overlap):
        raise DataError(
            f"{len(overlap)} test examples are also in the forget set (first: test row {int(overlap[0])}); whoever was "
            "forgotten cannot stand for those never seen: remove them from the test set"
        )
    kept = torch.ones(len(test), dtype=torch.bool)
    if retain is not None:
        check_disjoint(forget, retain)
        copies = copies_of(retain, test).cpu()
        if len(copies) > _BY_CHANCE * len(test):
            raise DataError(
                f"{len(copies)} of {len(test)} test examples are also in the retain set (first: test row "
                f"{int(copies[0])}); what was trained on cannot stand for what was never seen: give others as test set"
            )
        kept[copies] = False
    left_out = int((~kept).sum())
    notes = (f"{left_out} of {len(test)} test examples are also in the retain set: left out",) if left_out else ()
    return kept.nonzero().flatten(), notes


def divide(test_y: Tensor, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Positions of the background, at most a third of each class but two in all, and of the rest; both ascending."""
    if len(test_y) < 3:
        raise DataError(
            f"there are {len(test_y)} test examples; an audit needs at least 3, two of them to fit attacks on"
        )
    order = torch.randperm(len(test_y), generator=generator)
    shuffled = test_y[order]
    # The rank of an example within its class, over the size of the class: all classes give alike.
    rank = torch.zeros(len(order), dtype=torch.float64)
    for label in torch.unique(shuffled):
        places = (shuffled == label).nonzero().flatten()
        rank[places] = torch.arange(1, len(places) + 1, dtype=torch.float64) / len(places)
    chosen = torch.argsort(rank, stable=True)[: max(2, min(size, len(test_y) // _SHARE))]
    left = torch.ones(len(order), dtype=torch.bool)
    left[chosen] = False
    return order[chosen].sort().values, order[left].sort().values
