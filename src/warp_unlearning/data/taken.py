"""Rows of a tensor that are taken where they are used: a captured update takes its batches itself."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .examples import Examples, TensorExamples


@dataclass(frozen=True, eq=False)
class Taken:
    """The rows of `source` at `index`, int64 and beside it."""

    source: Tensor
    index: Tensor

    def now(self) -> Tensor:
        """These rows."""
        return self.source.index_select(0, self.index)


Given = Tensor | Taken


def take_later(examples: Examples, index: Tensor) -> tuple[Given, Given]:
    """Inputs and labels at `index`: still to be taken where they lie in tensors, fetched where they do not."""
    if not isinstance(examples, TensorExamples):
        return examples.take(index)
    where = index.to(examples.x.device, non_blocking=True)
    return Taken(examples.x, where), Taken(examples.y, where)


def taken(given: Given) -> Tensor:
    """The tensor itself."""
    return given.now() if isinstance(given, Taken) else given
