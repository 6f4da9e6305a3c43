"""A frozen model to imitate or to leave behind."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.examples import Examples, Given, Taken, TensorExamples, taken
from ..training.scoring import logits


class Teacher:
    """The logits of a frozen model on one collection of examples, by index.

    Computed once where the examples are fixed tensors, for all or for those at `rows`, which then are the only ones
    that may be asked for; computed each time where a `Dataset` may augment them.
    """

    def __init__(self, model: nn.Module, examples: Examples, *, rows: Tensor | None = None) -> None:
        self._model = model
        self._table: Tensor | None = None
        if isinstance(examples, TensorExamples):
            self._table = logits(model, examples) if rows is None else _scattered(model, examples, rows)

    @torch.no_grad()
    def __call__(self, index: Tensor, x: Given) -> Given:
        """Logits for the examples at `index`, whose inputs are `x`; shape (batch, classes)."""
        if self._table is not None:
            return Taken(self._table, index.to(self._table.device))
        value: Tensor = self._model(taken(x))
        return value


def _scattered(model: nn.Module, examples: TensorExamples, rows: Tensor) -> Tensor:
    """Logits at their rows of a table for all examples; NaN elsewhere, so that a row nobody computed is noticed."""
    known = logits(model, examples.select(rows))
    table = known.new_full((len(examples), known.shape[1]), float("nan"))
    table[rows.to(known.device)] = known
    return table


def divergence(teacher: Tensor, student: Tensor, *, temperature: float = 1.0) -> Tensor:
    """T² · mean over the batch of KL(softmax(teacher/T) ‖ softmax(student/T)), logits of shape (batch, classes)."""
    target = F.log_softmax(teacher / temperature, dim=1)
    output = F.log_softmax(student / temperature, dim=1)
    return temperature**2 * F.kl_div(output, target, reduction="batchmean", log_target=True)
