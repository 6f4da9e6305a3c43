"""How far a row lies from a background of rows, s = vᵀ(Σ̂ + λI)⁻¹v with v = Δ − μ̂, without any d×d matrix.

μ̂ and Σ̂ = XᵀX/(m − 1) are the mean and covariance of m background rows over the coordinates where they vary most, X
(m, d) those rows less μ̂. Everything about s that depends on the background is in the m×m matrix G = XXᵀ: with z = Xv,

    s = [‖v‖² − zᵀ(G + λ(m − 1)I)⁻¹z]/λ.

G and z are products in float64 of rows in whatever type gradients have. The subtraction costs as many digits as the
largest variance of a direction exceeds λ by, which is what solving with the d×d matrix costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from ...errors import InputError
from .gradient_rows import spans

# Products in float64 take so many numbers at a time: a float64 copy of all columns would triple the memory. A GPU needs
# large products to be busy.
_COPIED = 2**25
_COPIED_ELSEWHERE = 2**28
# A ridge below this share of the trace is near the rounding of G, whose eigenvalues must be told from 0.
_RESOLVED = 1e-11


class Rows(Protocol):
    """A matrix (n, d) that is read a few rows at a time."""

    def __len__(self) -> int: ...

    def part(self, begin: int, end: int) -> Tensor:
        """Rows `begin` to `end` − 1."""


def fit_backgrounds(
    rows: Rows, parts: Sequence[Tensor], *, keep: float, ridge: float, relative: bool, batch_size: int
) -> list[BackgroundFit]:
    """A fit to each of `parts`, sets of at least 2 row indices, on the share `keep` of the coordinates that vary most
    within it. The rows are read twice: to choose the coordinates, and to gather them.
    """
    small = min(len(part) for part in parts)
    if small < 2:
        raise InputError(f"a background of {small} rows has no covariance; give at least 2 examples")
    spreads = [_Spread() for _ in parts]
    for which, members in _by_part(rows, parts, batch_size):
        spreads[which].add(members)
    chosen = [most_variant(spread.variance, keep) for spread in spreads]
    centres = [spread.mean[columns] for spread, columns in zip(spreads, chosen, strict=True)]
    del spreads
    gathered: list[Tensor] = [torch.empty(0)] * len(parts)
    filled = [0] * len(parts)
    for which, members in _by_part(rows, parts, batch_size):
        columns = chosen[which]
        if not filled[which]:
            gathered[which] = members.new_empty(len(parts[which]), len(columns))
            centres[which] = centres[which].to(members.dtype)
        end = filled[which] + len(members)
        place = gathered[which][filled[which] : end]
        torch.sub(members.index_select(1, columns), centres[which], out=place)
        filled[which] = end
    fits = zip(chosen, gathered, centres, strict=True)
    return [BackgroundFit(*fit, ridge=ridge, relative=relative) for fit in fits]


class BackgroundFit:
    """The mean, the covariance and the ridge λ of `size` background rows over chosen `columns`.

    `rows` are the background rows at those columns less `about`, in the type the gradients have, shape (m, d); `about`
    is close to their mean, and what it misses of it is taken off in closed form, so that rounding it costs nothing.
    With `relative`, λ is `ridge` · tr Σ̂/d, else `ridge` itself.
    """

    def __init__(self, columns: Tensor, rows: Tensor, about: Tensor, *, ridge: float, relative: bool) -> None:
        self.size, self.coordinates = rows.shape
        self._columns, self._rows, self._about = columns, rows, about
        products = exact_products(rows, rows)
        self._missed = products.mean(1)  # Y·ȳ, for rows Y about `about`, whose mean is ȳ
        self._missed_square = self._missed.mean()
        gram = products - self._missed[:, None] - self._missed[None, :] + self._missed_square
        gram = (gram + gram.T) / 2
        trace = float(gram.diagonal().sum().clamp(min=0))
        spread = trace / (self.size - 1)
        self.ridge = ridge * spread / self.coordinates if relative and self.coordinates else ridge
        self._explained = _explained_by(gram, self.ridge * (self.size - 1), trace)

    def distance(self, rows: Tensor) -> Tensor:
        """The s of each row, shape (k,), float64, for rows (k, all columns); 0 where no column varies."""
        if self.coordinates == 0:
            return torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
        apart = rows.index_select(1, self._columns) - self._about
        cross = exact_products(self._rows, apart)
        square = exact_squares(apart) - 2 * cross.mean(0) + self._missed_square
        z = cross - self._missed[:, None]
        return (square - self._explained(z - z.mean(0))).clamp(min=0) / self.ridge


def parts_of(count: int, *, repetitions: int, generator: torch.Generator | None) -> list[Tensor]:
    """`count` indices in `repetitions` disjoint parts of nearly equal size, drawn by `generator`.

    >>> [part.tolist() for part in parts_of(3, repetitions=1, generator=None)]
    [[0, 1, 2]]
    """
    if count < 2 * repetitions:
        raise InputError(
            f"the background has {count} examples for {repetitions} repetitions, each of which needs 2 of its own; "
            "give more background examples or ask for fewer repetitions"
        )
    if repetitions == 1:
        return [torch.arange(count)]
    if generator is None:
        raise InputError("repetitions draw parts of the background at random; give a `generator`")
    return list(torch.randperm(count, generator=generator).tensor_split(repetitions))


def most_variant(variance: Tensor, keep: float) -> Tensor:
    """The indices, ascending, of the share `keep` of coordinates with the largest variance, at least one of them.

    Of equal variances the earlier coordinate goes first. A coordinate that does not vary is never chosen, so there may
    be fewer, or none.

    >>> most_variant(torch.tensor([0.0, 3.0, 1.0, 2.0]), 0.5).tolist()
    [1, 3]
    >>> most_variant(torch.tensor([0.0, 3.0, 0.0, 0.0]), 0.5).tolist()
    [1]
    """
    wanted = max(1, round(keep * len(variance)))
    least = torch.topk(variance, wanted, sorted=False).values.min()
    chosen = variance > least
    tied = (variance == least).nonzero()[:, 0]
    chosen[tied[: wanted - int(chosen.sum())]] = True
    return (chosen & (variance > 0)).nonzero()[:, 0]


class _Spread:
    """Means and variances of the columns of all rows added so far, in float64.

    Each batch is reduced about its own mean in the type of the rows, and merged: with n and k rows, means a and b, and
    sums of squared deviations S and T, the merged sum is S + T + (b − a)² nk/(n + k). Large numbers are never
    subtracted from each other, so a variance far below the squared mean survives.
    """

    def __init__(self) -> None:
        self._count = 0
        self.mean = self._deviation = torch.zeros(())

    @property
    def variance(self) -> Tensor:
        return self._deviation.clamp(min=0) / (self._count - 1)

    def add(self, rows: Tensor) -> None:
        k = len(rows)
        # About the first row, a coordinate that does not vary is 0 without rounding.
        apart = rows - rows[0]
        centre, deviation = _by_running_means(apart) if rows.is_cuda else _by_two_means(apart)
        mean = rows[0].double() + centre
        if not self._count:
            self._count, self.mean, self._deviation = k, mean, deviation
            return
        total, gap = self._count + k, mean - self.mean
        self.mean += gap * (k / total)
        self._deviation += deviation + gap.square() * (self._count * k / total)
        self._count = total


def _by_two_means(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Means and sums of squared deviations of the columns, float64; writes over the rows."""
    centre = rows.mean(0)
    rows -= centre
    left = rows.mean(0).double()
    return centre.double() + left, rows.square_().sum(0).double() - len(rows) * left.square()


def _by_running_means(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The same by Welford's recurrence, which reads the rows once: what counts on a GPU, and is slow on a processor."""
    variance, centre = torch.var_mean(rows, 0, correction=0)
    return centre.double(), variance.double() * len(rows)


def _by_part(rows: Rows, parts: Sequence[Tensor], batch_size: int) -> Iterator[tuple[int, Tensor]]:
    """The number of a part and some of its rows, until all rows of all parts were given once."""
    owner = torch.full((len(rows),), -1)
    for which, part in enumerate(parts):
        owner[part] = which
    for begin, end in spans(len(rows), batch_size):
        found = rows.part(begin, end)
        for which in sorted(set(owner[begin:end].tolist())):
            inside = (owner[begin:end] == which).nonzero()[:, 0]
            if which >= 0:
                whole = len(inside) == len(found)
                yield which, found if whole else found.index_select(0, inside.to(found.device))


def _explained_by(gram: Tensor, ridge: float, trace: float) -> Callable[[Tensor], Tensor]:
    """What takes columns z (m, k) to zᵀ(G + ridge · I)⁻¹z, by a Cholesky factor, many times as fast as eigenvalues."""
    if ridge > _RESOLVED * trace:
        ridged = gram.clone()
        ridged.diagonal().add_(ridge)
        factor, failed = torch.linalg.cholesky_ex(ridged)
        if not bool(failed):
            return lambda z: torch.linalg.solve_triangular(factor, z, upper=False).square().sum(0)
    values, vectors = torch.linalg.eigh(gram)
    # The rank is at most m − 1: the smallest eigenvalues are rounding, and may come out below 0.
    sizes = values.clamp(min=0) + ridge
    return lambda z: ((vectors.T @ z).square() / sizes[:, None]).sum(0)


def exact_products(a: Tensor, b: Tensor) -> Tensor:
    """A Bᵀ in float64, shape (p, q), of rows (p, d) and (q, d), whatever their type."""
    total = torch.zeros(len(a), len(b), dtype=torch.float64, device=a.device)
    step = max(1, _copied(a) // (len(a) + len(b)))
    for some_a, some_b in zip(torch.split(a, step, 1), torch.split(b, step, 1), strict=True):
        total.addmm_(some_a.double(), some_b.double().T)
    return total


def exact_squares(rows: Tensor) -> Tensor:
    """‖row‖² in float64, shape (p,)."""
    total = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    for some in torch.split(rows, max(1, _copied(rows) // len(rows)), 1):
        total += some.double().square().sum(1)
    return total


def _copied(rows: Tensor) -> int:
    return _COPIED if rows.device.type == "cpu" else _COPIED_ELSEWHERE
