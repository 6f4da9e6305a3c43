"""Orthonormal columns with the span of a tall matrix, by Cholesky factors where that is safe and by QR where it is not.

XᵀX = L Lᵀ gives Q = X L⁻ᵀ, which is several times faster than QR on tall matrices but squares the condition number: in
float32 it breaks down from a condition of a few thousand on (of columns of equal length: their lengths do not matter).
So what comes out is measured: a Q that is not orthonormal to `TOLERANCE` goes through the step once more. Where there
is no factor, that of XᵀX + sI, for columns of length one and s above the rounding errors, brings the condition down to
what further steps can do with ("shifted CholeskyQR3", Fukaya et al. 2020). QR is for what is left.

On a GPU a measure that is read waits for all that was launched before. `by_one_step` gives it as a tensor, so that
those of many matrices can be read together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import inf

import torch
from torch import Tensor

from .gram import gram

TOLERANCE = 1e-4
_STARTS = 8
KEPT_COLUMNS = 32
_FURTHER = 3


def orthonormal(columns: Tensor) -> Tensor:
    """Q of shape (d, k) with ‖QᵀQ − I‖ ≤ `TOLERANCE` and the span of `columns` (d, k), k ≤ d."""
    once, doubt = by_one_step(columns)
    return orthonormal_after(columns, once, float(doubt))


def orthonormal_after(columns: Tensor, once: Tensor, doubt: float) -> Tensor:
    """`orthonormal`, after a first step that gave `once` with this `doubt`."""
    sound, q = columns, once
    for _ in range(_FURTHER):
        if doubt <= TOLERANCE:
            return q
        # What a factor that failed leaves behind has another span.
        sound = q if doubt < inf else shifted_step(sound)
        q, measured = by_one_step(sound)
        doubt = float(measured)
    if doubt <= TOLERANCE:
        return q
    exact: Tensor = torch.linalg.qr(columns).Q
    return exact


@dataclass(frozen=True, eq=False)
class Doubt:
    """What says how far a Q is from orthonormal columns: what one or two factors it was made by say of themselves, zero
    where there was one, and the lengths of the starts of `measured_departure` after one and two steps, not read.
    """

    failed: tuple[Tensor, ...]
    first: Tensor
    second: Tensor

    @staticmethod
    def measured(doubts: Sequence[Doubt]) -> Tensor:
        """The departure of each, infinite where there was no factor; all by a few operations."""
        failed = torch.stack([each for doubt in doubts for each in (doubt.failed[0], doubt.failed[-1])])
        first, second = (torch.stack(parts) for parts in zip(*((d.first, d.second) for d in doubts), strict=True))
        worst = (second / first.clamp(min=torch.finfo(first.dtype).tiny)).amax(1)
        return torch.where((failed == 0).view(-1, 2).all(1), worst, inf)


def by_one_step(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Q by one Cholesky step, and its departure as a tensor, infinite where there was no factor; nothing is read.

    Q is to be used only if the departure proves to be at most `TOLERANCE`.
    """
    q, doubt = doubtful_step(columns)
    return q, Doubt.measured([doubt])[0]


def doubtful_step(columns: Tensor) -> tuple[Tensor, Doubt]:
    """`by_one_step`, whose departure is measured with those of others."""
    factor, failed = torch.linalg.cholesky_ex(gram(columns))
    q: Tensor = torch.linalg.solve_triangular(factor.mT, columns, upper=True, left=False)
    return q, Doubt((failed,), *_lengths(q))


def step_after_leading(columns: Tensor, leading: int) -> tuple[Tensor, Doubt]:
    """`doubtful_step` for so many `leading` columns, and then for the others less their part along those.

    A product with a second moment brings what little a column has of its leading eigenvectors up by the ratio of the
    eigenvalues, so that all columns come close to those. Without that part one step is enough for most.
    """
    factor, first_failed = torch.linalg.cholesky_ex(gram(columns[:, :leading]))
    first = torch.linalg.solve_triangular(factor.mT, columns[:, :leading], upper=True, left=False)
    rest = columns[:, leading:] - first @ (first.mT @ columns[:, leading:])
    factor, failed = torch.linalg.cholesky_ex(gram(rest))
    q = torch.cat([first, torch.linalg.solve_triangular(factor.mT, rest, upper=True, left=False)], dim=1)
    return q, Doubt((first_failed, failed), *_lengths(q))


class Unproven:
    """`doubtful_step` for one matrix after another, or `step_after_leading`, with the doubts for later."""

    def __init__(self, leading: int = 0) -> None:
        self.doubts: list[Doubt] = []
        self._leading = leading

    def __call__(self, columns: Tensor) -> Tensor:
        """Q alone."""
        q, doubt = step_after_leading(columns, self._leading) if self._leading else doubtful_step(columns)
        self.doubts.append(doubt)
        return q


def shifted_step(columns: Tensor) -> Tensor:
    """Columns with the span of X, far from orthonormal but much better conditioned: X L⁻ᵀ, L Lᵀ = XᵀX + sI, of columns
    of length one. NaN where there was no factor either; nothing is read.
    """
    size = torch.linalg.vector_norm(columns, dim=0)
    even = columns / size.clamp(min=torch.finfo(columns.dtype).tiny)
    product = gram(even)
    # Errors of the product and of the factor are up to about ε tr(XᵀX), and the trace is k.
    product.diagonal().add_(2 * torch.finfo(columns.dtype).eps * columns.shape[1])
    factor, failed = torch.linalg.cholesky_ex(product)
    q: Tensor = torch.linalg.solve_triangular(factor.mT, even, upper=True, left=False)
    return torch.where(failed == 0, q, torch.nan)


def departure(q: Tensor) -> float:
    """`measured_departure`, read."""
    return float(measured_departure(q))


def measured_departure(q: Tensor) -> Tensor:
    """‖QᵀQ − I‖, its largest eigenvalue by size, from below, without forming the matrix; NaN where Q holds one.

    Power iteration from a few fixed random starts: where orthogonality is lost, it is lost in few directions and by
    much, and all of the starts would have to be nearly orthogonal to those to miss them.
    """
    first, second = _lengths(q)
    return (second / first.clamp(min=torch.finfo(q.dtype).tiny)).max()


def _lengths(q: Tensor) -> tuple[Tensor, Tensor]:
    """‖E z‖ and ‖E² z‖ for the starts z, with E = QᵀQ − I."""
    k = q.shape[1]
    if k == 0:
        return q.new_zeros(_STARTS), q.new_zeros(_STARTS)
    # By the rows, of which there are few numbers: how many columns there are is decided by data.
    z = _starts(len(q), k, q.dtype, q.device)
    turned = q.mT
    lengths = []
    for _ in range(2):
        z = torch.addmm(z, turned, q @ z, beta=-1)
        lengths.append(torch.linalg.vector_norm(z, dim=0))
    return lengths[0], lengths[1]


@lru_cache(maxsize=512)
def _starts(length: int, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The first rows of `fixed_normal`, a view of it."""
    return fixed_normal(length, _STARTS, dtype, device)[:count]


def fixed_normal(length: int, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The same normal numbers at every call, (length, count); not to be written to. Few columns stay where they are for
    as long as the process lives: graphs that were captured read them there, and hold nothing.
    """
    return (_kept if count <= KEPT_COLUMNS else _recent)(length, count, dtype, device)


@cache
def _kept(length: int, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return _drawn(length, count, dtype, device)


@lru_cache(maxsize=128)
def _recent(length: int, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return _drawn(length, count, dtype, device)


def _drawn(length: int, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    draw = torch.Generator(device).manual_seed(0)
    return _complete(torch.randn(length, count, generator=draw, dtype=dtype, device=device))


def _complete(kept: Tensor) -> Tensor:
    """What is kept for later calls, there before it is given out: the next may be on another stream."""
    if kept.is_cuda:
        torch.cuda.current_stream(kept.device).synchronize()
    return kept
