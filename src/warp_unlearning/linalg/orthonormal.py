"""Orthonormal columns with the span of a tall matrix, by Cholesky factors where that is safe and by QR where it is not.

XᵀX = L Lᵀ gives Q = X L⁻ᵀ, which is several times faster than QR on tall matrices but squares the condition number: in
float32 it breaks down from a condition of a few thousand on (of columns of equal length: their lengths do not matter).
So what comes out is measured: a Q that is not orthonormal to `TOLERANCE` goes through the step once more, and then
through QR.

On a GPU a measure that is read waits for all that was launched before. `by_one_step` gives it as a tensor, so that
those of many matrices can be read together.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf

import torch
from torch import Tensor

from .gram import gram

TOLERANCE = 1e-4
_STARTS = 8
_STEPS = 2


def orthonormal(columns: Tensor) -> Tensor:
    """Q of shape (d, k) with ‖QᵀQ − I‖ ≤ `TOLERANCE` and the span of `columns` (d, k), k ≤ d."""
    once, doubt = by_one_step(columns)
    measured = float(doubt)
    if measured <= TOLERANCE:
        return once
    # What a factor that failed leaves behind has another span.
    if measured < inf:
        twice, doubt = by_one_step(once)
        if float(doubt) <= TOLERANCE:
            return twice
    exact: Tensor = torch.linalg.qr(columns).Q
    return exact


def by_one_step(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Q by one Cholesky step, and its departure as a tensor, infinite where there was no factor; nothing is read.

    Q is to be used only if the departure proves to be at most `TOLERANCE`.
    """
    factor, failed = torch.linalg.cholesky_ex(gram(columns))
    q: Tensor = torch.linalg.solve_triangular(factor.mT, columns, upper=True, left=False)
    return q, torch.where(failed == 0, measured_departure(q), inf)


def departure(q: Tensor) -> float:
    """`measured_departure`, read."""
    return float(measured_departure(q))


def measured_departure(q: Tensor) -> Tensor:
    """‖QᵀQ − I‖, its largest eigenvalue by size, from below, without forming the matrix; NaN where Q holds one.

    Power iteration from a few fixed random starts: where orthogonality is lost, it is lost in few directions and by
    much, and all of the starts would have to be nearly orthogonal to those to miss them.
    """
    k = q.shape[1]
    if k == 0:
        return q.new_zeros(())
    z = _unit_starts(k, q.dtype, q.device)
    z = q.mT @ (q @ z) - z
    for _ in range(_STEPS - 1):
        z = z / z.norm(dim=0).clamp(min=torch.finfo(q.dtype).tiny)
        z = q.mT @ (q @ z) - z
    worst: Tensor = z.norm(dim=0).max()
    return worst


@lru_cache(maxsize=128)
def _unit_starts(length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    starts = fixed_normal(length, _STARTS, dtype, device)
    unit: Tensor = starts / starts.norm(dim=0)
    return unit


@lru_cache(maxsize=128)
def fixed_normal(length: int, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The same normal numbers at every call, (length, count); not to be written to."""
    draw = torch.Generator(device).manual_seed(0)
    return torch.randn(length, count, generator=draw, dtype=dtype, device=device)
