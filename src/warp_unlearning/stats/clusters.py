"""The variance of a statistic whose observations stand in a table: rows drawn together, and columns drawn together.

In a shadow audit a row is a shadow (all models that descend from one training) and a column is an audited point. Two
observations of a point are dependent because the same fits score both, two observations of a shadow because the same
models did. With ψ the influences, c, R and C their sums over a cell, a row and a column, S rows and P columns,

    variance = apart + together,    apart = P/(P−1) Σ C²,    x = S/(S−1) Σ R² − Σ c²,
    together = λ⁴ x  where x > 0,   x/2 (at least −apart/2)  where not.

The first term is all that points do on their own; it needs no assumption on how scores depend on each other inside a
point. The second is what shadows add by moving many points together, which a bootstrap over points cannot see. λ
(`refit`) stands for what ψ leaves out: a shadow that moves all its scores also sits in the fits of the others. With n
shadows in one fit and m in the other λ = 1 + 1/n + 1/m. Where nothing moves together x is noise about 0, and half of
what falls below is kept, so that the noise does not only add. Student's t has the degrees of freedom of
Satterthwaite, the second term counting for (S−1)/2 only: a shadow enters an area by the square of its shift, so that
its sums are skewed and their variance is itself uncertain. The fourth power, the half and the (S−1)/2 were chosen on
simulated audits of 16 and 64 shadows.

Points are a sample here. For a fixed set of points that differ much the interval is wider than it need be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .intervals import Spread
from .roc import Floats


@dataclass(frozen=True, eq=False)
class TwoWay:
    """Products of the influences of k statistics, summed over rows, columns and cells: three k×k tables."""

    rows: Floats
    columns: Floats
    cells: Floats
    row_count: int
    column_count: int
    refit: float

    def spread(self, weights: Sequence[float]) -> Spread:
        """The variance of Σ wᵢ Tᵢ."""
        w = np.asarray(weights, dtype=np.float64)
        rows = max(float(w @ self.rows @ w), 0.0) * self.row_count / (self.row_count - 1)
        if self.column_count == 1:
            return combined(0.0, self.refit**4 * rows, rows=self.row_count, columns=2)
        apart = max(float(w @ self.columns @ w), 0.0) * self.column_count / (self.column_count - 1)
        beyond = rows - float(w @ self.cells @ w)
        together = self.refit**4 * beyond if beyond > 0 else max(beyond, -apart) / 2
        return combined(apart, together, rows=self.row_count, columns=self.column_count)


def combined(apart: float, together: float, *, rows: int, columns: int) -> Spread:
    """What columns do on their own and rows add together, as one variance with Satterthwaite's degrees of freedom."""
    total = apart + together
    if total == 0:
        return Spread(0.0, columns - 1, 0.0)
    # As shares, since squares of very small variances may vanish.
    doubt = (apart / total) ** 2 / (columns - 1) + (max(together, 0.0) / total) ** 2 / ((rows - 1) / 2)
    return Spread(total, max(1 / doubt, 1.0), together)


def two_way(tables: Sequence[Floats], *, refit: float = 1.0) -> TwoWay:
    """Products of influences given as tables of cells, shape (rows, columns), one for each statistic."""
    shape = tables[0].shape
    if any(table.shape != shape for table in tables) or len(shape) != 2:
        raise InputError(
            f"tables of shapes {[table.shape for table in tables]}; all must have one shape (rows, columns)"
        )
    if shape[0] < 2:
        raise InputError(f"{shape[0]} row; a variance over rows needs at least 2")
    over_rows = np.stack([table.sum(1) for table in tables])
    over_columns = np.stack([table.sum(0) for table in tables])
    flat = np.stack([table.ravel() for table in tables])
    return TwoWay(
        rows=over_rows @ over_rows.T,
        columns=over_columns @ over_columns.T,
        cells=flat @ flat.T,
        row_count=shape[0],
        column_count=int(np.count_nonzero(np.any(flat.reshape(len(tables), *shape) != 0, axis=(0, 1)))) or 1,
        refit=refit,
    )


def cell_sums(
    values: Floats, rows: NDArray[np.integer], columns: NDArray[np.integer], shape: tuple[int, int]
) -> Floats:
    """The values summed over the cells of a table of that shape."""
    flat = np.bincount(rows.astype(np.int64) * shape[1] + columns, weights=values, minlength=shape[0] * shape[1])
    return np.asarray(flat, dtype=np.float64).reshape(shape)
