"""What was forgotten and what was kept: an unlearned model beside its original and a retrained one.

The retrained model never saw the forget set, so it is what unlearning aims at. The gap to it is measured on the forget
set as the mean total variation distance between the two models' predicted distributions, ½ Σ_c |p_c − q_c|, in [0, 1],
and as the Kolmogorov-Smirnov distance between the distributions of their losses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ..data.examples import Examples, as_examples
from ..data.files import to_json
from ..errors import InputError
from ..stats.intervals import Estimate, mean, proportion
from ..training.scoring import logits
from ..unlearning.checks import check_examples

SCHEMA_VERSION = 1
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class ModelScores:
    """Accuracy on each set with a 95 % interval, and the distribution of the loss on the forget set."""

    accuracy: Mapping[str, Estimate]
    forget_loss_mean: Estimate
    forget_loss_quantiles: Mapping[str, float]


@dataclass(frozen=True)
class Gap:
    """How far a model is from the retrained one; accuracy differences are model minus retrained."""

    forget_output: Estimate
    forget_loss: float
    accuracy: Mapping[str, float]


@dataclass(frozen=True)
class Comparison:
    """Scores of each model by name ("original", "unlearned", "retrained"), and gaps to the retrained one where it is
    given.
    """

    models: Mapping[str, ModelScores]
    gaps: Mapping[str, Gap]
    counts: Mapping[str, int]

    def as_json(self) -> dict[str, Any]:
        """Plain data, with the version of its form; a bound that is infinite is None, as JSON has no infinity."""
        reference = "retrained model" if "retrained" in self.models else "none: no retrained model was given"
        return {"schema_version": SCHEMA_VERSION, "reference": reference, **to_json(asdict(self))}


def compare(
    original: nn.Module,
    unlearned: nn.Module,
    *,
    forget: object,
    retain: object,
    test: object,
    retrained: nn.Module | None = None,
) -> Comparison:
    """Score the models on the forget, retain and test sets, each a pair of tensors, a `Dataset` or a `DataLoader`."""
    given = {"forget": forget, "retain": retain, "test": test}
    models = {"original": original, "unlearned": unlearned} | ({} if retrained is None else {"retrained": retrained})
    sets = {what: as_examples(source, what=what) for what, source in given.items()}
    _check_classes(models, sets)
    outputs = {
        name: {what: logits(model, part).double().cpu() for what, part in _beside(model, sets).items()}
        for name, model in models.items()
    }
    sets = {what: examples.to("cpu") for what, examples in sets.items()}
    scores = {name: _scores(outputs[name], sets) for name in models}
    distances = {
        name: _distances(outputs[name]["forget"], outputs["retrained"]["forget"], sets["forget"].y)
        for name in ("original", "unlearned")
        if retrained is not None
    }
    accuracy = {
        name: {what: scores[name].accuracy[what].value - scores["retrained"].accuracy[what].value for what in sets}
        for name in distances
    }
    gaps = {name: Gap(*gap, accuracy[name]) for name, gap in distances.items()}
    return Comparison(scores, gaps, {what: len(examples) for what, examples in sets.items()})


def output_distance(output: Tensor, reference: Tensor) -> Tensor:
    """Total variation distance ½ Σ_c |p_c − q_c| between softmaxed logits of shape (n, classes), for each example."""
    return 0.5 * (F.softmax(output, dim=1) - F.softmax(reference, dim=1)).abs().sum(1)


def _beside(model: nn.Module, sets: Mapping[str, Examples]) -> dict[str, Examples]:
    """The sets on the device of the model, which stays where it is."""
    device = next(model.parameters()).device
    return {what: examples.to(device) for what, examples in sets.items()}


def _check_classes(models: Mapping[str, nn.Module], sets: Mapping[str, Examples]) -> None:
    """Raise unless each model takes every set and all have the same classes."""
    classes = {name: check_examples(model, _beside(model, sets)) for name, model in models.items()}
    if len(set(classes.values())) > 1:
        found = ", ".join(f"{name} {count}" for name, count in classes.items())
        raise InputError(f"the models have different numbers of classes ({found}); give models of one task")


def _scores(outputs: Mapping[str, Tensor], sets: Mapping[str, Examples]) -> ModelScores:
    accuracy = {
        what: proportion(int((output.argmax(1) == sets[what].y).sum()), len(output)) for what, output in outputs.items()
    }
    losses = _losses(outputs["forget"], sets["forget"].y)
    quantiles = {f"{q:g}": float(v) for q, v in zip(QUANTILES, np.quantile(losses, QUANTILES), strict=True)}
    return ModelScores(accuracy, mean(losses), quantiles)


def _distances(output: Tensor, reference: Tensor, y: Tensor) -> tuple[Estimate, float]:
    """Mean total variation distance of outputs, and Kolmogorov-Smirnov distance of losses."""
    # Takes a second to import.
    from scipy.stats import ks_2samp

    outputs = mean(output_distance(output, reference).cpu().numpy())
    return outputs, float(ks_2samp(_losses(output, y), _losses(reference, y)).statistic)


@torch.no_grad()
def _losses(output: Tensor, y: Tensor) -> NDArray[np.float64]:
    losses: NDArray[np.float64] = F.cross_entropy(output, y, reduction="none").cpu().numpy()
    return losses
