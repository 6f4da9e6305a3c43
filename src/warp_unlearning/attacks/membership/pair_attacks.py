"""Every attack that needs no shadow model: scores of candidates by an attacker who holds an original and another model.

| attack | score | needs |
|---|---|---|
| confidence | log-odds of the label under the other model | its outputs |
| gradient norm | log ‖∇ℓ(x; θ_u)‖² | its weights |
| confidence drop | log-odds under the original less those under the other model | outputs of both |
| gradient difference | how unlike Δ(x) = ∇ℓ(x; θ_u) − ∇ℓ(x; θ_o) is to that of examples never seen | weights of both |
| update alignment | cos(θ_u − θ_o, ∇ℓ(x; θ_o)) | weights of both |

The last two are repeated after every pre-step that may undo a defence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ...data.examples import TensorExamples
from ...errors import InputError
from ...gradients.energy import gradient_energy
from ...training.scoring import logit_confidence, logits
from ..undo import make_pre_step
from ..undo.base import CachedState, Held, NotApplicable, Undo, checked_difference
from ..undo.probes import single_gradients
from .model_pair import check_pair
from .original_gradients import OriginalGradients, original_side
from .state_scores import state_scores
from .update_alignment import Alignment, update_alignment

Floats = NDArray[np.float64]
NAIVE = "naive"
_AT_ONCE, _AT_ONCE_ELSEWHERE = 256, 1024


@dataclass(frozen=True)
class Attack:
    """An attack and the pre-step before it ("naive" is none), and what the attacker must hold for it."""

    name: str
    step: str
    needs: str

    def __str__(self) -> str:
        return self.name if self.step == NAIVE else f"{self.name} after {self.step}"


@dataclass(frozen=True, eq=False)
class PairScores:
    """Scores of all candidates by attack, and what was not tried, with the reason."""

    scores: dict[Attack, Floats]
    not_tried: dict[str, str]


class PairAttacker:
    """An attacker who holds `original`, and examples: `background`, which no model has seen, and `probes`, drawn as the
    training data were. What depends on the original alone is computed once for all models it is compared with, but for
    gradients of candidates and background, which take more memory than time.
    """

    def __init__(
        self,
        original: nn.Module,
        *,
        candidates: TensorExamples,
        background: TensorExamples,
        probes: TensorExamples,
        steps: Sequence[str],
        ridge: float,
        relative_ridge: bool,
    ) -> None:
        self._original = deepcopy(original).eval()
        self._candidates, self._background = candidates, background
        self._ridge, self._relative = ridge, relative_ridge
        self._held = Held(self._original, (probes.x, probes.y))
        self._steps = tuple(steps)
        for name in self._steps:
            make_pre_step(name)

    def attack(self, model: nn.Module, *, steps: Sequence[str] | None = None) -> PairScores:
        """The scores of every attack on the original and `model`, after other `steps` where they are given."""
        other = deepcopy(model).eval()
        check_pair(self._original, other)
        undo, not_tried = self._prepared(self._steps if steps is None else steps)
        confidence = _confidence(other, self._candidates)
        scores = {
            Attack("confidence", NAIVE, "outputs of the unlearned model"): confidence,
            Attack("confidence drop", NAIVE, "outputs of both models"): self._before - confidence,
        }
        try:
            energies = _energies(other, self._candidates)
            scores[Attack("gradient norm", NAIVE, "weights of the unlearned model")] = energies
        except InputError as error:
            not_tried["gradient norm"] = str(error)
        return PairScores(scores | self._by_weights(CachedState(other.state_dict()), undo, not_tried), not_tried)

    @cached_property
    def _before(self) -> Floats:
        return _confidence(self._original, self._candidates)

    @cached_property
    def _gradients(self) -> OriginalGradients:
        return original_side(
            self._original,
            candidates=self._candidates,
            background=self._background,
            calibration=None,
            batch_size=None,
        )

    @cached_property
    def _unmapped(self) -> str | None:
        """Why gradients of single examples cannot be taken, where they cannot."""
        try:
            single_gradients(self._held.model, self._held.x[:1], self._held.y[:1])
        except NotApplicable as error:
            return str(error)
        return None

    def _prepared(self, steps: Sequence[str]) -> tuple[dict[str, Undo], dict[str, str]]:
        undo: dict[str, Undo] = {}
        left: dict[str, str] = {}
        for name in steps:
            try:
                undo[name] = self._held.prepared(make_pre_step(name))
            except NotApplicable as error:
                left[f"after {name}"] = str(error)
        return undo, left

    def _by_weights(
        self, state: CachedState, undo: Mapping[str, Undo], not_tried: dict[str, str]
    ) -> dict[Attack, Floats]:
        undone: dict[str, CachedState] = {}
        for name, step in undo.items():
            try:
                undone[name] = state.after(step)
            except NotApplicable as error:
                not_tried[f"after {name}"] = str(error)
        same = _same_states(undone)
        distinct = {name: found for name, found in undone.items() if same[name] == name}
        statistic, aligned = self._scored(distinct, not_tried)
        weights, scores = "weights of both models", dict[Attack, Floats]()
        for what, found in (("gradient difference", statistic), ("update alignment", aligned)):
            scores |= {Attack(what, name, weights): found[same[name]] for name in undone if same[name] in found}
        return scores

    def _scored(
        self, states: Mapping[str, CachedState], not_tried: dict[str, str]
    ) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """The gradient difference and the update alignment of every state."""
        differences = {name: checked_difference(self._held, found) for name, found in states.items()}
        by_kernel = [name for name in states if name == "scale-free"]
        original = self._gradients
        statistics = partial(state_scores, original, states, ridge=self._ridge, relative_ridge=self._relative)
        if self._unmapped is not None:
            not_tried["update alignment"] = self._unmapped
            return statistics(), {}
        if not states:
            return {}, {}
        if original.names != self._held.parameters:
            # Frozen parameters have no part in the one, and in the other they have.
            candidates = self._candidates.x, self._candidates.y
            aligned = update_alignment(self._original, differences, candidates=candidates, by_kernel=by_kernel)
            return statistics(), aligned
        alignment = Alignment(dict(original.model.named_parameters()), differences, by_kernel=by_kernel)
        return statistics(watch=alignment.add_rows), alignment.scores()


def _same_states(states: Mapping[str, CachedState]) -> dict[str, str]:
    """For every state the first one that it is the same as, which may be itself."""
    found: dict[str, str] = {}
    for name, state in states.items():
        found[name] = next((first for first in dict.fromkeys(found.values()) if state.is_same(states[first])), name)
    return found


def _confidence(model: nn.Module, examples: TensorExamples) -> Floats:
    output = logits(model, examples).double().cpu().numpy()
    return np.asarray(logit_confidence(output, examples.y.cpu().numpy()), dtype=np.float64)


def _energies(model: nn.Module, examples: TensorExamples) -> Floats:
    """Logarithms of ‖∇ℓᵢ‖² over all floating-point parameters."""
    for p in model.parameters():
        p.requires_grad_(p.is_floating_point())
    size = _AT_ONCE if examples.x.device.type == "cpu" else _AT_ONCE_ELSEWHERE
    with torch.no_grad():
        batches = zip(torch.split(examples.x, size), torch.split(examples.y, size), strict=True)
        parts = [gradient_energy(model, x, y) for x, y in batches]
    found = torch.cat(parts).double().clamp(min=torch.finfo(torch.float64).tiny).log()
    return np.asarray(found.cpu().numpy(), dtype=np.float64)
