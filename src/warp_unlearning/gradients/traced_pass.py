"""One forward pass of a model over a batch, in the layout its device prefers, with the uses of layers on record."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .ghost.rule import Passing
from .other_forms import HardsigmoidClamped
from .uses import Trace, traced_copy


@dataclass(frozen=True)
class TracedPass:
    """The model, the copy of it that was called, what that wrote down, and its output."""

    model: nn.Module
    copy: nn.Module
    trace: Trace
    output: Tensor


def traced_pass(model: nn.Module, x: Tensor, *, inputs_only: bool = False) -> TracedPass:
    """The pass over x. Its trace is to be closed. With `inputs_only` no gradient of a parameter will be asked for."""
    if suits_channels_last(x):
        try:
            return _as_laid_out(model, x.clone(memory_format=torch.channels_last), inputs_only)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            # The model asks for views that this layout does not have, or fails in any.
            x = x.contiguous()
    return _as_laid_out(model, x.clone(), inputs_only)


def suits_channels_last(x: Tensor) -> bool:
    """Whether layers are faster over x where channels run fastest: GPUs convolve so."""
    return x.is_cuda and x.dim() == 4


def _as_laid_out(model: nn.Module, x: Tensor, inputs_only: bool) -> TracedPass:
    trace = Trace(passing=Passing(inputs_only=inputs_only))
    copy = traced_copy(model, trace)
    try:
        with HardsigmoidClamped():
            return TracedPass(model, copy, trace, copy(x))
    except BaseException:
        trace.close()
        raise
