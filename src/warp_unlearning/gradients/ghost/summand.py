"""Squared norms of several layers, added up and differentiated in one node of the graph.

A node of Python takes a GPU's host longer than most of what the node launches, so all layers of a model share one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from .applied import applied
from .once import differentiable_once
from .precision import precision_of_convolutions


class Summand(ABC):
    """nᵢ as a function of some tensors, outside the reach of autograd; an object is for one evaluation.

    Tensors are not kept in it but handed back, so that they are free as soon as they have been used. Products of
    matrices have the precision of convolutions.
    """

    @abstractmethod
    def norms(self, tensors: Sequence[Tensor], wanted: Sequence[bool]) -> tuple[Tensor, Sequence[Tensor]]:
        """nᵢ, shape (batch,), or several such terms of it in a row, and what `pullbacks` is to be given; `wanted` says
        which derivatives it will find.
        """

    @abstractmethod
    def pullbacks(
        self, tensors: Sequence[Tensor], kept: Sequence[Tensor], wanted: Sequence[bool], twice: Tensor
    ) -> Sequence[Tensor | None]:
        """½ Σᵢ twiceᵢ nᵢ differentiated with respect to every tensor that is wanted; `twice` has shape (batch,)."""


# A summand and what it is a function of.
Entry = tuple[Summand, Sequence[Tensor]]


def summed(entries: Sequence[Entry]) -> Tensor:
    """Σ nᵢ over the summands, shape (batch,), differentiable once in their tensors."""
    tensors = [tensor for _, own in entries for tensor in own]
    counts = [len(own) for _, own in entries]
    found = applied(_Sum, [summand for summand, _ in entries], counts, *tensors)
    return cast(Tensor, found)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, summands: list[Summand], counts: list[int], *tensors: Tensor) -> Tensor:
        wanted = ctx.needs_input_grad[2:]
        norms: list[Tensor] = []
        saved: list[Tensor] = []
        ctx.steps = []
        first = 0
        with precision_of_convolutions():
            for summand, count in zip(summands, counts, strict=True):
                place = slice(first, first + count)
                found, kept = summand.norms(tensors[place], wanted[place])
                norms.append(found)
                saved += (*tensors[place], *kept)
                ctx.steps.append((summand, wanted[place], len(kept)))
                first += count
        ctx.save_for_backward(*saved)
        return _total(norms, tensors[0].shape[0])

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        saved = list(ctx.saved_tensors)
        # Unless the graph is to be kept, so that what a summand has used is free before the next is begun.
        ctx.maybe_clear_saved_tensors()
        twice = 2 * upstream
        with precision_of_convolutions():
            # Those of the layers that were called first free least and need most.
            found = [_pulled_back(saved, twice, *step) for step in reversed(ctx.steps)]
        return None, None, *(slope for some in reversed(found) for slope in some)


def _total(norms: Sequence[Tensor], batch: int) -> Tensor:
    """Σ of the terms, shape (batch,)."""
    row = norms[0] if len(norms) == 1 else torch.cat(list(norms))
    return row if row.shape[0] == batch else row.view(-1, batch).sum(0)


def _pulled_back(
    saved: list[Tensor], twice: Tensor, summand: Summand, wanted: Sequence[bool], count: int
) -> Sequence[Tensor | None]:
    """The pullbacks of the summand whose tensors and the `count` it kept are the last of `saved`; they are removed."""
    whole = len(saved)
    kept, tensors = saved[whole - count :], saved[whole - count - len(wanted) : whole - count]
    del saved[whole - count - len(wanted) :]
    dtype = tensors[0].dtype
    return summand.pullbacks(tensors, kept, wanted, twice if twice.dtype == dtype else twice.to(dtype))
