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

import warnings
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ...data.examples import TensorExamples
from ...errors import InputError, WarpWarning
from ...gradients.energy import gradient_energy
from ...training.scoring import logits
from ..undoing.protocol import Held, NotApplicable, Undo, Weights
from ..undoing.registry import make_pre_step
from ..undoing.states import difference, undone_model
from .confidence import logit_confidence
from .gradient_difference import gradient_difference
from .model_pair import check_pair
from .original_gradients import OriginalGradients, prepare_original
from .update_alignment import update_alignment

Floats = NDArray[np.float64]
NAIVE = "naive"
_AT_ONCE = 256


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
    training data were. What depends on the original alone is computed once for all models it is compared with.
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
        self._undo, self._not_applicable = self._prepare(steps)

    def attack(self, model: nn.Module) -> PairScores:
        """The scores of every attack on the original and `model`."""
        other = deepcopy(model).eval()
        check_pair(self._original, other)
        confidence = _confidence(other, self._candidates)
        scores = {
            Attack("confidence", NAIVE, "outputs of the unlearned model"): confidence,
            Attack("confidence drop", NAIVE, "outputs of both models"): self._before - confidence,
        }
        not_tried = dict(self._not_applicable)
        try:
            energies = _energies(other, self._candidates)
            scores[Attack("gradient norm", NAIVE, "weights of the unlearned model")] = energies
        except InputError as error:
            not_tried["gradient norm"] = str(error)
        return PairScores(scores | self._by_weights(other, not_tried), not_tried)

    @cached_property
    def _before(self) -> Floats:
        return _confidence(self._original, self._candidates)

    @cached_property
    def _gradients(self) -> OriginalGradients:
        return prepare_original(self._original, candidates=self._candidates, background=self._background)

    def _prepare(self, steps: Sequence[str]) -> tuple[dict[str, Undo], dict[str, str]]:
        undo: dict[str, Undo] = {}
        left: dict[str, str] = {}
        for name in steps:
            try:
                undo[name] = make_pre_step(name).prepared(self._held)
            except NotApplicable as error:
                left[f"after {name}"] = str(error)
        return undo, left

    def _by_weights(self, other: nn.Module, not_tried: dict[str, str]) -> dict[Attack, Floats]:
        state = other.state_dict()
        undone = {}
        for name, undo in self._undo.items():
            try:
                undone[name] = undo(state)
            except NotApplicable as error:
                not_tried[f"after {name}"] = str(error)
        differences = {name: difference(self._original, found) for name, found in undone.items()}
        weights = "weights of both models"
        scores: dict[Attack, Floats] = {}
        try:
            for name, found in undone.items():
                scores[Attack("gradient difference", name, weights)] = self._statistic(found)
        except NotApplicable as error:
            not_tried["gradient difference"] = str(error)
        try:
            aligned = update_alignment(
                self._original,
                differences,
                candidates=(self._candidates.x, self._candidates.y),
                by_kernel=[name for name in undone if name == "scale-free"],
            )
        except NotApplicable as error:
            not_tried["update alignment"] = str(error)
            return scores
        return scores | {Attack("update alignment", name, weights): found for name, found in aligned.items()}

    def _statistic(self, state: Weights) -> Floats:
        with warnings.catch_warnings():
            # Identical models have equal scores, which the reading of the area reports.
            warnings.simplefilter("ignore", WarpWarning)
            return gradient_difference(
                self._gradients,
                undone_model(self._original, state),
                ridge=self._ridge,
                relative_ridge=self._relative,
            ).statistic


def _confidence(model: nn.Module, examples: TensorExamples) -> Floats:
    output = logits(model, examples).double().cpu().numpy()
    return np.asarray(logit_confidence(output, examples.y.cpu().numpy()), dtype=np.float64)


def _energies(model: nn.Module, examples: TensorExamples) -> Floats:
    """Logarithms of ‖∇ℓᵢ‖² over all floating-point parameters."""
    for p in model.parameters():
        p.requires_grad_(p.is_floating_point())
    with torch.no_grad():
        parts = [
            gradient_energy(model, x, y)
            for x, y in zip(torch.split(examples.x, _AT_ONCE), torch.split(examples.y, _AT_ONCE), strict=True)
        ]
    found = torch.cat(parts).double().clamp(min=torch.finfo(torch.float64).tiny).log()
    return np.asarray(found.cpu().numpy(), dtype=np.float64)
