"""Squared norms of several layers, added up and differentiated in one node of the graph.

A node of Python takes a GPU's host longer than most of what the node launches, so all layers of a model share one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .precision import precision_of_convolutions


class Summand(ABC):
    """nᵢ as a function of some tensors, outside the reach of autograd; an object is for one evaluation.

    It may keep what it has computed, but not the tensors it is given, which the graph keeps and watches. Products of
    matrices have the precision of convolutions.
    """

    @abstractmethod
    def norms(self, tensors: Sequence[Tensor], wanted: Sequence[bool]) -> Tensor:
        """nᵢ, shape (batch,); `wanted` says which tensors `pullbacks` is to be differentiated with respect to."""

    @abstractmethod
    def pullbacks(self, tensors: Sequence[Tensor], wanted: Sequence[bool], twice: Tensor) -> Sequence[Tensor | None]:
        """½ Σᵢ twiceᵢ nᵢ differentiated with respect to every tensor that is wanted; `twice` has shape (batch,)."""


# A summand and what it is a function of.
Entry = tuple[Summand, Sequence[Tensor]]


def summed(entries: Sequence[Entry]) -> Tensor:
    """Σ nᵢ over the summands, shape (batch,), differentiable once in their tensors."""
    tensors = [tensor for _, own in entries for tensor in own]
    counts = [len(own) for _, own in entries]
    found = _Sum.apply([summand for summand, _ in entries], counts, *tensors)  # type: ignore[no-untyped-call]
    return cast(Tensor, found)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, summands: list[Summand], counts: list[int], *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        ctx.summands, ctx.places = summands, list(_places(counts))
        wanted = ctx.needs_input_grad[2:]
        with precision_of_convolutions():
            norms = [
                summand.norms(tensors[place], wanted[place])
                for summand, place in zip(summands, ctx.places, strict=True)
            ]
        return norms[0] if len(norms) == 1 else torch.stack(norms).sum(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        tensors, wanted, twice = ctx.saved_tensors, ctx.needs_input_grad[2:], 2 * upstream
        found: list[Tensor | None] = []
        with precision_of_convolutions():
            for summand, place in zip(ctx.summands, ctx.places, strict=True):
                own = tensors[place]
                found += summand.pullbacks(own, wanted[place], twice.to(own[0].dtype))
        return None, None, *found


def _places(counts: Sequence[int]) -> Iterator[slice]:
    first = 0
    for count in counts:
        yield slice(first, first + count)
        first += count
