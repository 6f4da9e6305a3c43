"""Xᵀ X at about half the price of a product: it is symmetric, so only the blocks on and below the diagonal are made.

On a GPU, where a launch costs more than it multiplies, there are fewer and larger blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

# Fewer blocks save less, and narrower ones multiply more slowly.
_BLOCKS = 6
_NARROWEST = 192
_NARROWEST_ELSEWHERE = 1024


def add_gram(total: Tensor, rows: Tensor) -> None:
    """Add Xᵀ X, for rows X of shape (..., n, d), to the blocks of `total` (..., d, d) on and below the diagonal."""
    if total.dim() == 3 and len(total) == 1:
        # Of one alone the product is split among all of a GPU along n, which is long; of a stack it may not be.
        total, rows = total[0], rows[0]
    for begin, end in _spans(total):
        left, right = rows[..., begin:].mT, rows[..., begin:end]
        if total.dim() == 2:
            total[begin:, begin:end].addmm_(left, right)
        else:
            total[..., begin:, begin:end] += left @ right


def mirrored(total: Tensor) -> Tensor:
    """The symmetric matrix of which `total` (..., d, d) holds the part below the diagonal; writes over `total`."""
    spans = _spans(total)
    for begin, end in spans[:-1]:
        total[..., begin:end, end:] = total[..., end:, begin:end].mT
    return total


def gram(rows: Tensor) -> Tensor:
    """Xᵀ X, shape (..., d, d), for rows X of shape (..., n, d)."""
    d = rows.shape[-1]
    if len(_spans(rows)) == 1:
        if rows.dim() == 3 and len(rows) == 1:
            only = rows[0]
            return (only.mT @ only).unsqueeze(0)
        return rows.mT @ rows
    total = torch.zeros(*rows.shape[:-2], d, d, dtype=rows.dtype, device=rows.device)
    add_gram(total, rows)
    return mirrored(total)


def _spans(columns: Tensor) -> Sequence[tuple[int, int]]:
    d = columns.shape[-1]
    narrowest = _NARROWEST if columns.is_cpu else _NARROWEST_ELSEWHERE
    return ((0, d),) if d < 2 * narrowest else _cuts(d, min(_BLOCKS, d // narrowest))


@lru_cache(maxsize=128)
def _cuts(d: int, count: int) -> Sequence[tuple[int, int]]:
    return tuple(pairwise([d * i // count for i in range(count + 1)]))
