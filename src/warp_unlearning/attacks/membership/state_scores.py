"""The gradient-difference statistic of several states of one network, in one pass over the candidates.

The gradients of candidates at the original, which all states are compared with, are computed once, a batch at a time,
and need never be held together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...gpu.precision import full_precision
from ..undo.base import Weights, undone_model
from .gradient_difference import FittedDifference, check_fit
from .gradient_rows import ComputedRows, FiniteCheck, spans
from .model_pair import are_identical
from .original_gradients import OriginalGradients, with_held
from .spare_memory import held_at_once

# The share of coordinates that `gradient_difference` takes where it is not told.
_KEEP = 0.1
# Of what is free on a GPU: a batch of candidates exists twice at once, and the largest parameter's part of it again.
_BATCH = 1 / 8


def state_scores(
    original: OriginalGradients,
    states: Mapping[str, Weights],
    *,
    ridge: float,
    relative_ridge: bool,
    watch: Callable[[Tensor], None] | None = None,
) -> dict[str, NDArray[np.float64]]:
    """`gradient_difference(...).statistic` of the candidates between the original and each state, by its name; 0 for a
    state that is the original's.

    `watch` is shown the gradients of all candidates at the original, batch after batch, as rows to be read at once.
    """
    check_fit(_KEEP, ridge)
    count = len(original.sets["candidates"])
    found = {name: torch.zeros(count, dtype=torch.float64, device=original.device) for name in states}
    models = {name: undone_model(original.model, state) for name, state in states.items()}
    differing = {name: model for name, model in models.items() if not are_identical(original.model, model)}
    with full_precision():
        for group in _groups(original, list(differing)) or [[]]:
            fitted = _fitted(original, {name: differing[name] for name in group}, ridge, relative_ridge)
            for begin, end, rows in _candidates(original) if fitted or watch is not None else ():
                if watch is not None:
                    watch(rows)
                for name, one in fitted.items():
                    found[name][begin:end] = one.statistic("candidates", begin, end, rows)[0]
            for one in fitted.values():
                one.require_finite()
            watch = None
    return {name: value.cpu().numpy() for name, value in found.items()}


def _fitted(
    side: OriginalGradients, models: Mapping[str, nn.Module], ridge: float, relative_ridge: bool
) -> dict[str, FittedDifference]:
    """Each model fitted to the background, whose gradients at the original are held for that long."""
    parts = [torch.arange(len(side.sets["background"]))]
    side = with_held(side, ("background",)) if len(models) > 1 else side
    return {
        name: FittedDifference(side, model, parts, keep=_KEEP, ridge=ridge, relative_ridge=relative_ridge)
        for name, model in models.items()
    }


def _candidates(side: OriginalGradients) -> Iterator[tuple[int, int, Tensor]]:
    rows, finite = side.rows["candidates"], FiniteCheck()
    if isinstance(rows, ComputedRows):
        rows = replace(rows, later=finite)
    for begin, end in spans(len(rows), side.rows_at_once(share=_BATCH)):
        yield begin, end, rows.part(begin, end)
    finite.require()


def _groups(side: OriginalGradients, names: Sequence[str]) -> list[Sequence[str]]:
    """The names in groups whose fitted backgrounds can be held together."""
    fit = round(_KEEP * len(side.sets["background"]) * side.row_bytes)
    size = held_at_once(2 * fit, side.device)
    return [names[begin : begin + size] for begin in range(0, len(names), size)]
