"""Backgrounds fitted in two passes over their rows: one to choose the coordinates, one to gather them.

Several backgrounds, disjoint parts of the rows, are fitted in the same two passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import InputError
from .background_fit import BackgroundFit
from .coordinate_spread import CoordinateSpread, most_variant
from .gradient_rows import Rows, spans


@dataclass(frozen=True, eq=False)
class ChosenFit:
    """A fitted background and the coordinates it was fitted on, indices ascending."""

    columns: Tensor
    fit: BackgroundFit

    def statistic(self, rows: Tensor) -> Tensor:
        """The s of each row, shape (k,), for rows (k, d) over all coordinates."""
        return self.fit.statistic(rows.index_select(1, self.columns))


def fit_backgrounds(
    rows: Rows, parts: Sequence[Tensor], *, keep: float, ridge: float, relative: bool, batch_size: int
) -> list[ChosenFit]:
    """A fit to each of `parts`, disjoint sets of at least 2 row indices, on the share `keep` of the coordinates that
    vary most within it.
    """
    spreads = [CoordinateSpread() for _ in parts]
    for which, members in _by_part(rows, parts, batch_size):
        spreads[which].add(members)
    gatherings = [
        _Gathering(most_variant(spread.variance, keep), spread.mean, len(part))
        for spread, part in zip(spreads, parts, strict=True)
    ]
    del spreads
    for which, members in _by_part(rows, parts, batch_size):
        gatherings[which].add(members)
    return [g.fitted(ridge=ridge, relative=relative) for g in gatherings]


class _Gathering:
    """The chosen columns of `size` rows less their mean, filled a few rows at a time."""

    def __init__(self, columns: Tensor, mean: Tensor, size: int) -> None:
        self._columns, self._about = columns, mean[columns]
        self._rows = mean.new_empty(0)
        self._size, self._filled = size, 0

    def add(self, rows: Tensor) -> None:
        if self._filled == 0:
            self._about = self._about.to(rows.dtype)
            self._rows = rows.new_empty(self._size, len(self._columns))
        end = self._filled + len(rows)
        torch.sub(rows.index_select(1, self._columns), self._about, out=self._rows[self._filled : end])
        self._filled = end

    def fitted(self, *, ridge: float, relative: bool) -> ChosenFit:
        return ChosenFit(self._columns, BackgroundFit(self._rows, self._about, ridge=ridge, relative=relative))


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


def parts_of(count: int, *, repetitions: int, generator: torch.Generator | None) -> list[Tensor]:
    """`count` indices in `repetitions` disjoint parts of nearly equal size, drawn by `generator`.

    >>> [part.tolist() for part in parts_of(3, repetitions=1, generator=None)]
    [[0, 1, 2]]
    """
    if repetitions < 1:
        raise InputError(f"repetitions is {repetitions}; it must be at least 1")
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
