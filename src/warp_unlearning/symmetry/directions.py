"""Directions in the space of weights, tensor by tensor: their lengths and inner products."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import torch
from torch import Tensor

Direction = dict[str, Tensor]


def norm_of(direction: Mapping[str, Tensor]) -> float:
    """‖δ‖ over all tensors."""
    return sqrt(inner(direction, direction))


def inner(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    """⟨first, second⟩ over the tensors of the second."""
    products = [(first[name].double() * value.double()).sum() for name, value in second.items()]
    return float(torch.stack(products).sum()) if products else 0.0
