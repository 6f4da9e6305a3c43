"""Attacks that read off one number of an example: is it right, how sure, how steep its loss, how much less sure."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from ...errors import InputError
from ...gradients.energy import gradient_energy
from ...stats.verdict import Needs
from ...training.scoring import logit_confidence
from ..undo.base import NotApplicable
from .base import Batch, Pair


class Accuracy:
    """1 where the new model is right, else 0."""

    name: ClassVar[str] = "accuracy"
    needs: ClassVar[Needs] = "new outputs"

    def score(self, pair: Pair, batch: Batch) -> Tensor:
        """Whether the largest logit is at the label."""
        return (batch.logits_of(pair.new).argmax(1).cpu() == batch.y.cpu()).double()


class Confidence:
    """The log-odds of the label under the new model, which ranks as its loss does."""

    name: ClassVar[str] = "confidence"
    needs: ClassVar[Needs] = "new outputs"

    def score(self, pair: Pair, batch: Batch) -> Tensor:
        """Log p − log(1 − p) of the label."""
        return _confidence(pair.new, batch)


class ConfidenceDrop:
    """The log-odds of the label under the original less those under the new model."""

    name: ClassVar[str] = "confidence drop"
    needs: ClassVar[Needs] = "both outputs"

    def score(self, pair: Pair, batch: Batch) -> Tensor:
        """How much less sure the new model is."""
        return _confidence(pair.original, batch) - _confidence(pair.new, batch)


class GradientNorm:
    """−log ‖∇ℓ(x; θ_new)‖²: the loss of an example that was learned is flat."""

    name: ClassVar[str] = "gradient norm"
    needs: ClassVar[Needs] = "new weights"

    def score(self, pair: Pair, batch: Batch) -> Tensor:
        """How flat the loss is."""
        try:
            with torch.no_grad():
                energies = gradient_energy(pair.new, batch.x, batch.y)
        except InputError as error:
            raise NotApplicable(str(error)) from error
        return -energies.double().clamp(min=torch.finfo(torch.float64).tiny).log()


def _confidence(model: nn.Module, batch: Batch) -> Tensor:
    output = batch.logits_of(model).double().cpu().numpy()
    return torch.from_numpy(logit_confidence(output, batch.y.cpu().numpy()))
