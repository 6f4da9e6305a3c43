"""Principal subspaces of second moments by products alone, where few directions hold most of the energy.

On a GPU the eigendecomposition of a large matrix is a long chain of steps, each of which keeps all of it waiting.
Subspace iteration is a few large products: two rounds from random columns tell about how many directions are needed,
then rounds with Chebyshev polynomials of C, which damp the eigenvalues in [0, a] and let those above grow (Zhou, Saad,
Tiago and Chelikowsky, 2006), bring half as many again close to eigenvectors, and one small eigendecomposition within
their span (Rayleigh–Ritz) says which they are. What comes out is measured: where a residual C u − θ u is not small, or
more than a quarter of all directions may be needed, there is no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import ceil
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from ..errors import InputError
from .eigh_of_each import Decomposed, eigh_of_each
from .on_host import on_host
from .orthonormal import TOLERANCE, Doubt, doubtful_step, fixed_normal
from .side_streams import SideStreams
from .subspace import Subspace

# Below so many rows a decomposition costs less than it takes to find out whether products would do.
_LARGE = 1000
_PART = 4
_SPARE, _FEWEST_SPARE = 0.5, 16
_ROUNDS = 4
# A polynomial that grows by more, from the smallest eigenvalue to the largest, leaves of the small ones nothing but
# rounding errors: at x = 2 λ / a − 1, T₃ is about 4 x³ and T₂ about 2 x².
_CUBIC_UP_TO, _SQUARE_UP_TO = 2e4, 1e7
_RESIDUAL = 1e-6

Given = TypeVar("Given")
Made = TypeVar("Made")


def leading_subspaces(moments: Sequence[Tensor], fraction: float) -> list[Subspace | None]:
    """The leading eigenvectors of each second moment (d, d), float64, that hold `fraction` of it, as many as
    `rank_for` gives; None where this way did not find them.

    All lie on one device. Residuals ‖C u − θ u‖ are at most a millionth of the smallest eigenvalue kept. The host reads
    twice, for all of them together. An eigenvector at right angles to the random columns to start from, the same each
    time, would be missed: data that do not know them have none.
    """
    if not moments:
        return []
    if min(len(moment) for moment in moments) < _PART:
        raise InputError(f"a second moment has fewer than {_PART} rows; decompose it")
    streams = SideStreams(moments[0].device)
    starts = _on_each(streams, moments, _started)
    wanted = [_wanted(numbers, fraction) for numbers in on_host([start.numbers for start in starts])]
    tasks = [
        _Task(moment, start.columns, want)
        for moment, start, want in zip(moments, starts, wanted, strict=True)
        if want is not None
    ]
    turned = _on_each(streams, tasks, _turned)
    ritz = eigh_of_each([each.within.unsqueeze(0) for each in turned])
    found = _on_each(streams, zip(turned, ritz, strict=True), _rotated)
    read = iter(zip(found, on_host([each.numbers for each in found]), strict=True))
    return [None if want is None else _accepted(*next(read), fraction) for want in wanted]


def products_pay(moment: Tensor, rank: int | None = None) -> bool:
    """Whether to try this way before a decomposition: of a large second moment on a GPU, unless more directions than it
    finds were needed of one like it, `rank` of them.
    """
    few = rank is None or rank <= len(moment) // _PART
    return moment.is_cuda and len(moment) >= _LARGE and few


def _on_each(streams: SideStreams, given: Iterable[Given], make: Callable[[Given], Made]) -> list[Made]:
    with streams:
        return streams.each([partial(make, each) for each in given])


class _Columns(NamedTuple):
    """Orthonormal columns (d, p), and what the host is to read about them."""

    columns: Tensor
    numbers: Tensor


class _Wanted(NamedTuple):
    """Which columns to go on with, int64 on the host, and the largest and smallest of their Rayleigh quotients."""

    columns: Tensor
    largest: float
    smallest: float


class _Task(NamedTuple):
    moment: Tensor
    columns: Tensor
    wanted: _Wanted


class _Turned(NamedTuple):
    """Orthonormal columns Q (d, p), C Q and Qᵀ C Q; the doubt about the last step and the trace of C, not read."""

    columns: Tensor
    image: Tensor
    within: Tensor
    judged: Tensor


def _started(moment: Tensor) -> _Columns:
    """Two rounds from random columns. To be read: the doubt, the trace of C, and the Rayleigh quotients."""
    d = len(moment)
    columns = fixed_normal(d, d // _PART, moment.dtype, moment.device)
    for _ in range(2):
        # All columns lean towards the same few directions: what one step makes of them need not be orthonormal.
        columns, doubt = doubtful_step(doubtful_step(moment @ columns)[0])
    quotients = (columns * (moment @ columns)).sum(0)
    return _Columns(columns, torch.cat([_judged(doubt, moment), quotients]))


def _judged(doubt: Doubt, moment: Tensor) -> Tensor:
    """What the last step of a few left; earlier ones only have to lead there."""
    return torch.stack([Doubt.measured([doubt])[0], moment.diagonal().sum()])


def _wanted(numbers: Tensor, fraction: float) -> _Wanted | None:
    """How many columns to go on with: as many as hold `fraction` by their Rayleigh quotients, which are at most the
    eigenvalues, and half as many again.
    """
    doubt, trace = numbers[:2].tolist()
    quotients, order = numbers[2:].sort(descending=True)
    held = quotients.cumsum(0)
    if not (doubt <= TOLERANCE and trace > 0 and held[-1] >= fraction * trace):
        return None
    rank = int((held < fraction * trace).sum()) + 1
    count = min(len(quotients), rank + max(_FEWEST_SPARE, ceil(_SPARE * rank)))
    largest, smallest = float(quotients[0]), float(quotients[count - 1])
    return _Wanted(order[:count], largest, smallest) if smallest > 0 else None


def _turned(task: _Task) -> _Turned:
    """Rounds of Q ← orth(T(C) Q), T the Chebyshev polynomial of the interval from 0 to the smallest quotient."""
    moment, columns, wanted = task
    columns = columns.index_select(1, wanted.columns.to(columns.device, non_blocking=True))
    shifted = moment * (2 / wanted.smallest)
    shifted.diagonal().sub_(1)
    degree = _degree(wanted.largest / wanted.smallest)
    for _ in range(_ROUNDS):
        image = _chebyshev(shifted, columns, degree)
        columns, _ = doubtful_step(image / image.norm(dim=0))
    # Once more: a residual is no smaller than the departure from orthonormal columns.
    columns, doubt = doubtful_step(columns)
    image = moment @ columns
    # Where a step failed there is no number, and an eigensolver would refuse all; the doubt says so.
    within = (columns.mT @ image).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    return _Turned(columns, image, (within + within.mT) / 2, _judged(doubt, moment))


def _degree(spread: float) -> int:
    return 3 if spread < _CUBIC_UP_TO else 2 if spread < _SQUARE_UP_TO else 1


def _chebyshev(shifted: Tensor, columns: Tensor, degree: int) -> Tensor:
    """T_degree(S) applied to columns, by T_{j+1} = 2 S T_j − T_{j−1}."""
    before, now = columns, shifted @ columns
    for _ in range(degree - 1):
        before, now = now, torch.addmm(before, shifted, now, beta=-1, alpha=2)
    return now


def _rotated(given: tuple[_Turned, Decomposed]) -> _Columns:
    """Ritz vectors, of descending value. To be read: doubt and trace as before, the values, and the residuals."""
    turned, (values, vectors) = given
    values, vectors = values[0].flip(0), vectors[0].flip(1)
    found = turned.columns @ vectors
    residuals = (turned.image @ vectors - found * values).norm(dim=0)
    return _Columns(found, torch.cat([turned.judged, values, residuals]))


def _accepted(found: _Columns, numbers: Tensor, fraction: float) -> Subspace | None:
    doubt, trace = numbers[:2].tolist()
    values, residuals = numbers[2:].chunk(2)
    held = values.cumsum(0)
    if not (doubt <= TOLERANCE and held[-1] >= fraction * trace):
        return None
    rank = int((held < fraction * trace).sum()) + 1
    if not float(residuals[:rank].max()) <= _RESIDUAL * float(values[rank - 1]):
        return None
    # A part that is kept must not keep the whole.
    return Subspace(found.columns[:, :rank].clone(), float(held[rank - 1]) / trace)
