"""Scores of candidates by every attack on an original and several other models, in one pass over the candidates.

The gradients of a batch at the original are computed once for all attacks, models and pre-steps: S states of the other
models cost 1 + S passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, partial
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...data.examples import TensorExamples
from ...errors import InputError, nearest, reason
from ...gpu.precision import full_precision
from ...models.own import load_function
from ...stats.verdict import Needs
from ..undo import make_pre_step
from ..undo.base import CachedState, Held, NotApplicable, undone_model
from .base import NAIVE, Attack, Batch, Fitted, Pair, checked_score, compared_parameters, gradient_copy
from .gradient_difference import GradientDifference, algorithm_ggd
from .gradient_rows import held_at_once, row_bytes, rows_at_once, spans
from .simple import Accuracy, Confidence, ConfidenceDrop, GradientNorm
from .update_alignment import UpdateAlignment

Floats = NDArray[np.float64]
# Examples at once for attacks that hold no gradients, on a CPU and elsewhere.
_AT_ONCE, _AT_ONCE_ELSEWHERE = 256, 1024
# Of what is free on a GPU: a batch of candidates exists twice at once, and the largest parameter's part of it again.
_BATCH = 1 / 8


@dataclass(frozen=True, eq=False)
class PairScores:
    """The scores (n,) of one attack after one pre-step, by the name of the model."""

    attack: Attack
    step: str
    scores: dict[str, Floats]

    @property
    def name(self) -> str:
        """The attack and its pre-step, if it has one: "update alignment after span"."""
        return _name(self.attack, self.step)


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
    if isinstance(found, type) or not isinstance(name, str) or not callable(getattr(found, "score", None)):
        raise InputError(f"the attack {attack!r} is a {type(found).__name__} without `name`, `needs` and `score`")
    if needs not in get_args(Needs):
        raise InputError(f"the attack {name} needs {needs!r}; it must be one of {', '.join(get_args(Needs))}")
    return found  # type: ignore[return-value]


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
        for step in steps:
            make_pre_step(step)
        plain = [a for a in attacks if a.needs != "both weights"]
        weighing = [a for a in attacks if a.needs == "both weights"]
        not_tried: dict[str, str] = {}
        with full_precision():
            found = self._plainly(models, plain, logits or {}, not_tried)
            if weighing:
                found += self._by_weights(models, weighing, steps, not_tried)
        return found, not_tried

    @cached_property
    def _original(self) -> nn.Module:
        return gradient_copy(self._given, compared_parameters(self._given))

    @cached_property
    def _held(self) -> Held:
        return Held(self._original, (self._probes.x, self._probes.y))

    def _pairs(self, states: Mapping[tuple[str, str], CachedState]) -> dict[tuple[str, str], Pair]:
        made, held = partial(undone_model, self._original), (self._background, self._probes)
        return {job: Pair(self._original, made(state), *held, job[1], state) for job, state in states.items()}

    def _batches(self, size: int, original: nn.Module) -> Iterator[tuple[slice, Batch]]:
        for begin, end in spans(len(self._candidates), size):
            at = slice(begin, end)
            yield at, Batch(self._candidates.x[at], self._candidates.y[at], original)

    def _plainly(
        self,
        models: Mapping[str, nn.Module],
        attacks: Sequence[Attack],
        logits: Mapping[str, Tensor],
        not_tried: dict[str, str],
    ) -> list[PairScores]:
        original = _in_eval(self._given)
        pairs = {name: Pair(original, _in_eval(m), self._background, self._probes) for name, m in models.items()}
        table = _Table(not_tried, self._row_name)
        size = _AT_ONCE if self._candidates.x.device.type == "cpu" else _AT_ONCE_ELSEWHERE
        for at, batch in self._batches(size, original):
            known = {original: logits["original"][at]} if "original" in logits else {}
            known |= {pair.new: logits[name][at] for name, pair in pairs.items() if name in logits}
            batch.known.update(known)
            for name, pair in pairs.items():
                for attack in attacks:
                    table.add(attack, pair, batch, name)
        return [table.scores(attack, NAIVE, {n: (n, NAIVE) for n in models}) for attack in attacks if table.has(attack)]

    def _by_weights(
        self,
        models: Mapping[str, nn.Module],
        attacks: Sequence[Attack],
        steps: Sequence[str],
        not_tried: dict[str, str],
    ) -> list[PairScores]:
        states = self._states(models, steps, not_tried)
        first: dict[tuple[str, str], tuple[str, str]] = {}
        for job, state in states.items():
            alike = (one for one in first.values() if one[0] == job[0] and state.is_same(states[one]))
            first[job] = next(alike, job)
        table = _Table(not_tried, self._row_name)
        size = rows_at_once(row_bytes(self._original), self._candidates.y.device, share=_BATCH)
        for group in self._groups(list(dict.fromkeys(first.values())), attacks):
            pairs = self._pairs({job: states[job] for job in group})
            for attack in attacks:
                if isinstance(attack, Fitted):
                    attack.fit(list(pairs.values()))
            for _, batch in self._batches(size, self._original):
                for job, pair in pairs.items():
                    for attack in attacks:
                        table.add(attack, pair, batch, *job)
        done = [step for step in steps if all((name, step) in states for name in models)]
        return [
            table.scores(attack, step, {name: first[name, step] for name in models})
            for attack in attacks
            for step in done
            if table.has(attack)
        ]

    def _states(
        self, models: Mapping[str, nn.Module], steps: Sequence[str], not_tried: dict[str, str]
    ) -> dict[tuple[str, str], CachedState]:
        """The weights of each model after each pre-step, of steps that apply to all."""
        given = {name: CachedState(model.state_dict()) for name, model in models.items()}
        found: dict[tuple[str, str], CachedState] = {}
        for step in steps:
            try:
                undo = self._held.prepared(make_pre_step(step))
                found |= {(name, step): state.after(undo) for name, state in given.items()}
            except NotApplicable as error:
                not_tried[f"after {step}"] = str(error)
        return found

    def _groups(self, jobs: list[tuple[str, str]], attacks: Sequence[Attack]) -> Iterator[list[tuple[str, str]]]:
        """The jobs in groups whose fits can be held together."""
        fits = [a.fit_bytes(len(self._background), row_bytes(self._original)) for a in attacks if isinstance(a, Fitted)]
        size = held_at_once(sum(fits), self._background.y.device) if fits else max(1, len(jobs))
        return (jobs[begin:end] for begin, end in spans(len(jobs), size))


class _Table:
    """Scores by attack, model and pre-step, collected batch by batch."""

    def __init__(self, not_tried: dict[str, str], row_name: Callable[[int], str]) -> None:
        self._not_tried, self._row_name = not_tried, row_name
        self._parts: dict[tuple[str, str, str], list[Tensor]] = {}

    def has(self, attack: Attack) -> bool:
        return attack.name not in self._not_tried

    def add(self, attack: Attack, pair: Pair, batch: Batch, model: str, step: str = NAIVE) -> None:
        """Score a batch; an attack that does not apply to one model is tried on none."""
        if not self.has(attack):
            return
        try:
            self._parts.setdefault((attack.name, model, step), []).append(checked_score(attack, pair, batch))
        except NotApplicable as error:
            self._not_tried[attack.name] = str(error)

    def scores(self, attack: Attack, step: str, of: Mapping[str, tuple[str, str]]) -> PairScores:
        """The scores after a pre-step, each model's being those of the model and step that it equals."""
        found = {}
        for model, job in of.items():
            found[model] = torch.cat(self._parts[attack.name, *job]).numpy()
            wrong = np.flatnonzero(~np.isfinite(found[model]))
            if wrong.size:
                raise InputError(
                    f"the attack {_name(attack, step)} gives {self._row_name(int(wrong[0]))} under the {model} model "
                    f"the score {found[model][wrong[0]]}, as {wrong.size} rows in all; the weights are damaged or the "
                    "loss overflows: use finite weights, or leave out those rows"
                )
        return PairScores(attack, step, found)


def _name(attack: Attack, step: str) -> str:
    return attack.name if step == NAIVE else f"{attack.name} after {step}"


def _in_eval(model: nn.Module) -> nn.Module:
    copy = deepcopy(model).eval()
    for p in copy.parameters():
        p.requires_grad_(p.is_floating_point())
    return copy
