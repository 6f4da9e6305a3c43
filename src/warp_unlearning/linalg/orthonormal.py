"""Orthonormal columns with the span of a tall matrix, by Cholesky factors where that is safe and by QR where it is not.

XᵀX = L Lᵀ gives Q = X L⁻ᵀ, which is several times faster than QR on tall matrices but squares the condition number: in
float32 it breaks down from a condition of a few thousand on (of columns of equal length: their lengths do not matter).
So what comes out is measured: a Q that is not orthonormal to `TOLERANCE` goes through the step once more, and then
through QR.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .gram import gram

TOLERANCE = 1e-4
_STARTS = 8
_STEPS = 2


def orthonormal(columns: Tensor) -> Tensor:
    """Q of shape (d, k) with ‖QᵀQ − I‖ ≤ `TOLERANCE` and the span of `columns` (d, k), k ≤ d."""
    once = _by_cholesky(columns)
    if once is not None and departure(once) <= TOLERANCE:
        return once
    twice = None if once is None else _by_cholesky(once)
    if twice is not None and departure(twice) <= TOLERANCE:
        return twice
    exact: Tensor = torch.linalg.qr(columns).Q
    return exact


def departure(q: Tensor) -> float:
    """‖QᵀQ − I‖, its largest eigenvalue by size, from below, without forming the matrix; NaN where Q holds one.

    Power iteration from a few fixed random starts: where orthogonality is lost, it is lost in few directions and by
    much, and all of the starts would have to be nearly orthogonal to those to miss them.
    """
    k = q.shape[1]
    if k == 0:
        return 0.0
    draw = torch.Generator(q.device).manual_seed(0)
    z = torch.randn(k, _STARTS, generator=draw, dtype=q.dtype, device=q.device)
    for _ in range(_STEPS):
        z = z / z.norm(dim=0).clamp(min=torch.finfo(q.dtype).tiny)
        z = q.mT @ (q @ z) - z
    return float(z.norm(dim=0).max())


def _by_cholesky(columns: Tensor) -> Tensor | None:
    factor, failed = torch.linalg.cholesky_ex(gram(columns))
    if bool(failed):
        return None
    q: Tensor = torch.linalg.solve_triangular(factor.mT, columns, upper=True, left=False)
    return q
