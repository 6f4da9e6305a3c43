"""Gradients of single examples at the original, precise enough to be compared."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...gradients.per_sample import per_sample_gradients
from ...gradients.tracing import math_attention
from ...models.modes import full_precision
from .protocol import NotApplicable


def single_gradients(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The cross-entropy gradient of every example, (batch, *parameter) by name, without TF32.

    The model must be in eval mode. A network that cannot be mapped over examples (its way through depends on values) is
    not applicable.
    """
    try:
        # Fused attention has no rule for gradients of single examples.
        with full_precision(), math_attention():
            return per_sample_gradients(model, x, y)[0]
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise NotApplicable(f"gradients of single examples cannot be taken of this network ({error})") from error
