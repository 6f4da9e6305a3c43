"""Sums of weights by the two channels they stand in, and derivatives of their total in the logarithms of factors.

No weight stands in more than two channels: one that multiplies it, of power 1, and one that divides it, of power −1.
With S_ab the sum of the weights that class a multiplies and class b divides, the total of all rescaled weights is
Φ(x) = Σ_ab S_ab exp(x_a − x_b), whatever tensors they lie in. So a network of many tensors has one matrix, and a step
of a solver takes a few operations. With S at x, its row sums r and its column sums c, ∂Φ/∂x = r − c and
∂²Φ/∂x∂xᵀ = diag(r + c) − S − Sᵀ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .protocol import Weights

if TYPE_CHECKING:
    from .channel_factors import Channels


@dataclass(frozen=True, eq=False)
class PairSums:
    """S, shape (free + 1, free + 1) as classes are numbered; a weight that nothing multiplies, or divides, has the last
    class there, whose logarithm is 0.
    """

    matrix: Tensor

    def first(self, logs: Tensor | None = None) -> Tensor:
        """∂Φ/∂x_c for every free class c, at the logarithms of all classes, or at 0."""
        rows, columns = self._rows_and_columns(logs)
        return (rows - columns)[:-1]

    def totals(self, logs: Tensor | None = None) -> Tensor:
        """Σ v over the rescaled weights that stand in each free class."""
        rows, columns = self._rows_and_columns(logs)
        return (rows + columns)[:-1]

    def second(self, logs: Tensor | None = None) -> Tensor:
        """∂²Φ/∂x_c∂x_d for all free classes; a tensor of its own."""
        inner = self.matrix[:-1, :-1]
        if logs is not None:
            # Matrices may be large: what is written over need not be allocated.
            inner = (inner * logs[:-1, None].exp()).mul_((-logs[:-1]).exp())
        found = (inner + inner.mT).neg_()
        found.diagonal().add_(self.totals(logs))
        return found

    def _rows_and_columns(self, logs: Tensor | None) -> tuple[Tensor, Tensor]:
        """The sums of rows and of columns of S at the logarithms, without that matrix."""
        if logs is None:
            return self.matrix.sum(1), self.matrix.sum(0)
        up, down = logs.exp(), (-logs).exp()
        return up * (self.matrix @ down), down * (self.matrix.mT @ up)


def pair_sums(channels: Channels, values: Weights) -> PairSums:
    """The S of weights by name, or of their sums over the taps of kernels; those without channels are left out."""
    given = {name: by_kernel(value) for name, value in values.items() if name in channels.places}
    n = channels.free + 1
    if not given:
        some = next(iter(values.values()))
        return PairSums(torch.zeros(n, n, dtype=torch.float64, device=some.device))
    entries = torch.cat([value.flatten() for value in given.values()]).double()
    where = channels.once(tuple(given), lambda: _where(channels, given))
    matrix = torch.zeros(n * n, dtype=torch.float64, device=entries.device).index_add(0, where, entries)
    return PairSums(matrix.reshape(n, n))


def by_kernel(value: Tensor) -> Tensor:
    """Sums over the taps of kernels, whose factors are one."""
    return value.flatten(2).sum(2) if value.dim() > 2 else value


def along(factors: Tensor, axes: tuple[int, ...], dims: int) -> Tensor:
    """Factors with the shape of `axes` as a tensor that is 1 long along all others."""
    shape = [1] * dims
    for axis, size in zip(axes, factors.shape, strict=True):
        shape[axis] = size
    return factors.reshape(shape)


def _where(channels: Channels, given: Weights) -> Tensor:
    """The place of every entry in the flattened matrix."""
    n = channels.free + 1
    found = []
    for name, value in given.items():
        place = torch.full_like(value, n * n - 1, dtype=torch.long)
        for one in channels.places[name]:
            classes = along(one.classes, one.axes, value.dim())
            place += (classes - channels.free) * (n if one.sign > 0 else 1)
        found.append(place.flatten())
    return torch.cat(found)
