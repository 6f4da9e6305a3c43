"""Mean and variance of every coordinate of rows that are seen once, a batch at a time; and the most variant of them.

Each batch is reduced about its own mean in the type of the rows, and merged in float64: with n and k rows, means a and
b, and sums of squared deviations S and T, the merged sum is S + T + (b − a)² nk/(n + k). Large numbers are never
subtracted from each other, so a variance far below the squared mean survives.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import InputError


class CoordinateSpread:
    """Means and variances of the columns of all rows added so far.

    >>> spread = CoordinateSpread()
    >>> spread.add(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    >>> spread.add(torch.tensor([[5.0, 5.0]]))
    >>> spread.mean.tolist(), spread.variance.tolist()
    ([3.0, 5.0], [4.0, 0.0])
    """

    def __init__(self) -> None:
        self.count = 0
        self._mean: Tensor | None = None
        self._deviation: Tensor | None = None

    def add(self, rows: Tensor) -> None:
        """Take account of `rows`, shape (k, d)."""
        k = len(rows)
        if k == 0:
            return
        # About the first row, a coordinate that does not vary is 0 without rounding.
        apart = rows - rows[0]
        centre, deviation = _by_running_means(apart) if rows.is_cuda else _by_two_means(apart)
        mean = rows[0].double() + centre
        if self._mean is None or self._deviation is None:
            self.count, self._mean, self._deviation = k, mean, deviation
            return
        total = self.count + k
        gap = mean - self._mean
        self._mean += gap * (k / total)
        self._deviation += deviation + gap.square() * (self.count * k / total)
        self.count = total

    @property
    def mean(self) -> Tensor:
        """The means, shape (d,), float64."""
        return self._seen(self._mean)

    @property
    def variance(self) -> Tensor:
        """The variances with divisor n − 1, shape (d,), float64."""
        if self.count < 2:
            raise InputError(f"{self.count} rows have no variance; give at least 2")
        return self._seen(self._deviation).clamp(min=0) / (self.count - 1)

    def _seen(self, value: Tensor | None) -> Tensor:
        if value is None:
            raise InputError("no rows have been added; give at least 2")
        return value


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


def most_variant(variance: Tensor, keep: float) -> Tensor:
    """The indices, ascending, of the share `keep` of coordinates with the largest variance, at least one of them.

    Of equal variances the earlier coordinate goes first. A coordinate that does not vary is never chosen, so there may
    be fewer, or none.

    >>> most_variant(torch.tensor([0.0, 3.0, 1.0, 2.0]), 0.5).tolist()
    [1, 3]
    >>> most_variant(torch.tensor([0.0, 3.0, 0.0, 0.0]), 0.5).tolist()
    [1]
    """
    if not 0 < keep <= 1:
        raise InputError(f"keep is {keep}; it is a share of the coordinates, above 0 and at most 1")
    wanted = max(1, round(keep * len(variance)))
    least = torch.topk(variance, wanted, sorted=False).values.min()
    chosen = variance > least
    tied = (variance == least).nonzero()[:, 0]
    chosen[tied[: wanted - int(chosen.sum())]] = True
    return (chosen & (variance > 0)).nonzero()[:, 0]
