"""The gradients of single examples at some coordinates, as a matrix (n, m) in float64."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from ..data.examples import TensorExamples
from ..errors import DataError
from ..gpu.precision import math_attention
from ..gradients.per_sample import each_gradient
from .coordinates import Coordinates
from .covariance import Array

# Entries of one parameter's gradients that are in memory at once.
_AT_ONCE = 1 << 26


def gradient_rows(model: nn.Module, examples: TensorExamples, coordinates: Coordinates, *, what: str) -> Array:
    """Row i holds ∂ℓ(f(xᵢ), yᵢ)/∂θ, cross-entropy, at the coordinates in their order. The model is in eval mode."""
    largest = max(p.numel() for p in model.parameters())
    size = max(1, min(64, _AT_ONCE // largest))
    # Fused attention has no rule for gradients of single examples.
    with math_attention():
        matrix = np.concatenate([_part(model, *pair, coordinates) for pair in _pairs(examples, size)])
    wrong = np.flatnonzero(~np.isfinite(matrix).all(1))
    if len(wrong):
        raise DataError(
            f"the gradient of row {wrong[0]} of the {what} set is not finite; the weights are damaged or the loss "
            "overflows: use finite weights, or remove the row"
        )
    return matrix


def _pairs(examples: TensorExamples, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(torch.split(examples.x, size), torch.split(examples.y, size), strict=True)


def _part(model: nn.Module, x: Tensor, y: Tensor, coordinates: Coordinates) -> Array:
    parts = []
    for name, gradient in each_gradient(model, x, y):
        if name in coordinates.positions:
            held = gradient.flatten(1)[:, coordinates.positions[name].to(gradient.device)]
            parts.append(held.detach().double().cpu().numpy())
    return np.concatenate(parts, axis=1)
