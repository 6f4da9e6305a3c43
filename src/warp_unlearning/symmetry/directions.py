"""Directions in the space of weights, tensor by tensor: their lengths, inner products and sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def combined(terms: Sequence[tuple[float, Mapping[str, Tensor]]]) -> Direction:
    """Σ weight · direction; the directions have the same names."""
    first = terms[0][1]
    return {name: torch.stack([w * d[name] for w, d in terms]).sum(0) for name in first}
