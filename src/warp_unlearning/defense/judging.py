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
    """Asks one model again and again, without rounding to TF32; on a GPU by a captured graph where that is possible,
    the third time and later ones, or once it was made ready. It remembers how often the last move was `halved` before
    it did no harm.
    """

    halved: int = field(default=0, init=False)
    _asked: int = field(default=0, init=False)
    _graph: CapturedLogits | None = field(default=None, init=False)
    _refused: bool = field(default=False, init=False)

    @property
    def at_once(self) -> bool:
        """Whether to ask is one launch for a GPU."""
        return self._graph is not None

    def logits(self, model: nn.Module, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The logits of each set of inputs, with the model as it stands."""
        self._asked += 1
        with full_precision():
            together = self._together(model, inputs)
            if together is None:
                return logits_of_each(model, inputs)
            return list(torch.split(together, [len(x) for x in inputs]))

    def make_ready(self, model: nn.Module, inputs: Sequence[Tensor]) -> None:
        """Have a graph for sets of inputs like these, where there is none and one is possible."""
        with full_precision():
            x = self._joined(inputs) if self._graph is None else None
            if x is not None:
                self._graph_for(model, x)

    def _together(self, model: nn.Module, inputs: Sequence[Tensor]) -> Tensor | None:
        x = None if self._graph is None and self._asked < _CAPTURED_FROM else self._joined(inputs)
        graph = None if x is None else self._graph_for(model, x)
        return None if x is None or graph is None else graph(x)

    def _joined(self, inputs: Sequence[Tensor]) -> Tensor | None:
        """All inputs as one batch, where a graph could take it."""
        alike = len({(x.shape[1:], x.dtype) for x in inputs}) == 1
        return torch.cat(list(inputs)) if alike and not self._refused and may_be_captured(inputs[0]) else None

    def _graph_for(self, model: nn.Module, x: Tensor) -> CapturedLogits | None:
        if self._graph is None or not self._graph.suits(x):
            try:
                self._graph = CapturedLogits(model, x)
            except RuntimeError:
                # Values that the host looks at, or too little memory: operation by operation then.
                self._graph, self._refused = None, True
        return self._graph


def may_be_captured(x: Tensor) -> bool:
    """Whether work on x can be captured."""
    return x.is_cuda
