"""Logits of the examples that judge teleports, before each move and after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..models.captured_logits import CapturedLogits
from ..models.full_precision import full_precision
from ..symmetry.certificate import logits_of_each

# A teleport asks twice or more; a graph costs as much as three answers.
_CAPTURED_FROM = 3


@dataclass(eq=False)
class Judging:
    """Asks one model again and again, without rounding to TF32; on a GPU, of which the third time and later ones are a
    captured graph where that is possible. It remembers how often the last move was `halved` before it did no harm.
    """

    halved: int = field(default=0, init=False)
    _asked: int = field(default=0, init=False)
    _graph: CapturedLogits | None = field(default=None, init=False)
    _refused: bool = field(default=False, init=False)

    def logits(self, model: nn.Module, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The logits of each set of inputs, with the model as it stands."""
        self._asked += 1
        with full_precision():
            together = self._together(model, inputs)
            if together is None:
                return logits_of_each(model, inputs)
            return list(torch.split(together, [len(x) for x in inputs]))

    def _together(self, model: nn.Module, inputs: Sequence[Tensor]) -> Tensor | None:
        alike = len({(x.shape[1:], x.dtype) for x in inputs}) == 1
        if self._refused or self._asked < _CAPTURED_FROM or not alike or not inputs[0].is_cuda:
            return None
        x = torch.cat(list(inputs))
        if self._graph is None or not self._graph.suits(x):
            try:
                self._graph = CapturedLogits(model, x)
            except RuntimeError:
                # Values that the host looks at, or too little memory: operation by operation then.
                self._refused = True
                return None
        return self._graph(x)
