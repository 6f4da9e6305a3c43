"""Gradients of examples as rows of a matrix, (n, d) in the order of the examples, asked for a few rows at a time.

Row i is ∇θ ℓ(f(xᵢ; θ), yᵢ), cross-entropy, over the d trainable parameters of the model, flattened one after the other.
The matrix may be computed anew each time it is read, or held where there is room for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from ...data.examples import TensorExamples
from ...errors import DataError
from ...gradients.per_sample import each_gradient


class Rows(Protocol):
    """A matrix (n, d) that is read a few rows at a time."""

    def __len__(self) -> int: ...

    def part(self, begin: int, end: int) -> Tensor:
        """Rows `begin` to `end` − 1, shape (end − begin, d); to be read, not written to."""


class FiniteCheck:
    """Which rows were finite, to be looked at when all is under way: a look waits for all that a GPU was given."""

    def __init__(self) -> None:
        self._seen: list[tuple[str, str, int, Tensor]] = []

    def note(self, of: str, at: str, begin: int, finite: Tensor) -> None:
        """Rows from `begin` on of a set at a model, bool (k,)."""
        self._seen.append((of, at, begin, finite))

    def require(self) -> None:
        """Refuse the first row noted that is not finite, and forget them all."""
        seen, self._seen = self._seen, []
        if not seen or bool(torch.cat([finite for *_, finite in seen]).all()):
            return
        of, at, begin, finite = next(each for each in seen if not bool(each[3].all()))
        row = begin + int((~finite).nonzero()[0])
        raise DataError(
            f"the gradient of row {row} of the {of} set at the {at} model is not finite; "
            "the weights are damaged or the loss overflows: use finite weights, or remove the row"
        )


@dataclass(frozen=True, eq=False)
class ComputedRows:
    """The gradients of `examples` at `model`, computed whenever they are asked for.

    `of` and `at` name the examples and the model in errors. Rows that are not finite are refused at once or, where
    there is a check for `later`, noted there.
    """

    model: nn.Module
    examples: TensorExamples
    of: str
    at: str
    later: FiniteCheck | None = None

    def __len__(self) -> int:
        return len(self.examples)

    def part(self, begin: int, end: int) -> Tensor:
        """Rows `begin` to `end` − 1, a tensor of its own."""
        return self._part(begin, end, None)

    def part_less(self, begin: int, end: int, others: Tensor) -> Tensor:
        """Rows `begin` to `end` − 1 less as many others, a tensor of its own."""
        return self._part(begin, end, others)

    def _part(self, begin: int, end: int, others: Tensor | None) -> Tensor:
        x, y = self.examples.x[begin:end], self.examples.y[begin:end]
        rows = torch.empty(end - begin, width(self.model), dtype=_dtype(self.model), device=x.device)
        filled = 0
        for _, gradient in each_gradient(self.model, x, y):
            span = slice(filled, filled + gradient[0].numel())
            # Each number is read and written once, in whatever order a gradient lies in memory.
            place = rows[:, span].view(gradient.shape)
            if others is None:
                place.copy_(gradient)
            else:
                torch.sub(gradient, others[:, span].view(gradient.shape), out=place)
            filled = span.stop
        check = self.later or FiniteCheck()
        check.note(self.of, self.at, begin, rows.sum(1).isfinite())
        if self.later is None:
            check.require()
        return rows


@dataclass(frozen=True, eq=False)
class HeldRows:
    """Rows that are in memory."""

    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, begin: int, end: int) -> Tensor:
        """Rows `begin` to `end` − 1, a view."""
        return self.rows[begin:end]


@dataclass(frozen=True, eq=False)
class DifferenceRows:
    """Δ: the rows of `unlearned` less those of `original`."""

    unlearned: ComputedRows
    original: Rows

    def __len__(self) -> int:
        return len(self.unlearned)

    def part(self, begin: int, end: int) -> Tensor:
        """Rows `begin` to `end` − 1, a tensor of its own."""
        return self.unlearned.part_less(begin, end, self.original.part(begin, end))


def held(rows: Rows, *, batch_size: int) -> HeldRows:
    """The same rows, read once, in memory on their device."""
    whole: Tensor | None = None
    for begin, end in spans(len(rows), batch_size):
        part = rows.part(begin, end)
        whole = part.new_empty(len(rows), part.shape[1]) if whole is None else whole
        whole[begin:end] = part
    if whole is None:
        raise DataError("there are no rows to hold; give at least one example")
    return HeldRows(whole)


def spans(count: int, batch_size: int) -> Iterator[tuple[int, int]]:
    """0 to `count` in steps of at most `batch_size`.

    >>> list(spans(5, 2))
    [(0, 2), (2, 4), (4, 5)]
    """
    return ((begin, min(begin + batch_size, count)) for begin in range(0, count, batch_size))


def width(model: nn.Module) -> int:
    """The number d of trainable parameters."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def _dtype(model: nn.Module) -> torch.dtype:
    """The widest type of the trainable parameters."""
    wide = any(p.dtype == torch.float64 for p in model.parameters() if p.requires_grad)
    return torch.float64 if wide else torch.float32
