"""Refreshes of one subspace that are proposed again and again, on a GPU by a captured graph where that is possible.

A proposal is some sixty short operations. A GPU does those of several subspaces side by side, but launched one by one
they keep the host busier than the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..cuda_graphs import CudaGraph, graphs_are_there
from .proposal import Proposal

# Coordinates. A convolution of many groups has a small subspace for each, and every graph takes some megabytes.
_LEAST = 64
# From a number of rounds, a second moment, columns, and what else it takes.
Way = Callable[..., Proposal]


class _Asked(NamedTuple):
    """All that decides which operations a proposal takes. Libraries have memory of their own for every stream, which
    graphs captured there go on using: one that was captured on another stream is none of this.
    """

    way: Way
    rounds: int
    given: tuple[tuple[torch.Size, torch.dtype], ...]
    stream: object
    precision: str


class Prepared(NamedTuple):
    """A proposal that is yet to be made: the copies that come first, to where and of what, the work itself, and whether
    the columns it comes to are `lent` by a graph, which writes over them the next time.
    """

    copies: Sequence[tuple[Tensor, Tensor]]
    make: Callable[[], Proposal]
    lent: bool


def copy_ahead(prepared: Sequence[Prepared]) -> None:
    """Make the copies of all of them, those within a device by one call."""
    pairs = [pair for each in prepared for pair in each.copies]
    near = [(there, new) for there, new in pairs if there.device == new.device]
    for there, new in pairs:
        if there.device != new.device:
            there.copy_(new, non_blocking=True)
    if near:
        torch._foreach_copy_([there for there, _ in near], [new for _, new in near])


def handed_over(prepared: Sequence[Prepared], proposals: Sequence[Proposal]) -> list[Proposal]:
    """What was made of each, with columns that are the caller's: the next refresh begins with them, and others keep
    them.
    """
    lent = [made.turned.columns for each, made in zip(prepared, proposals, strict=True) if each.lent]
    own = [torch.empty_like(columns) for columns in lent]
    if lent:
        torch._foreach_copy_(own, lent)
    copies = iter(own)
    return [
        replace(made, turned=replace(made.turned, columns=next(copies))) if each.lent else made
        for each, made in zip(prepared, proposals, strict=True)
    ]


class RepeatedProposal:
    """What a way gives, by a graph that is captured on demand, or once the same was asked for twice in a row.

    A copy begins anew: graphs belong to one process.
    """

    def __init__(self) -> None:
        self._last: _Asked | None = None
        self._captured: tuple[_Asked, _CapturedProposal] | None = None
        self._refused = False

    def __deepcopy__(self, memo: dict[int, Any]) -> RepeatedProposal:
        return RepeatedProposal()

    def __reduce__(self) -> tuple[type[RepeatedProposal], tuple[()]]:
        return RepeatedProposal, ()

    @property
    def captured(self) -> bool:
        """Whether there is a graph."""
        return self._captured is not None

    def prepared(self, way: Way, moment: Tensor, *given: Tensor, rounds: int) -> Prepared:
        """The proposal by a way that is given the second moment and these, to be made on the current stream before the
        next is prepared. What it is judged by holds until the next is made.
        """
        asked = None if self._refused else _asked(way, rounds, moment, given)
        again, self._last = asked == self._last, asked
        if asked is not None and self._graph_for(asked) is None and again:
            self._capture(asked, moment, given, first=False)
        graph = None if asked is None else self._graph_for(asked)
        if graph is None:
            return Prepared((), partial(_by_steps, way, rounds, moment, given), lent=False)
        return Prepared(graph.copies(moment, given), partial(graph.replayed, moment), lent=True)

    def capture(self, way: Way, moment: Tensor, *given: Tensor, rounds: int) -> None:
        """Have a graph for what will be asked, unless that is not possible."""
        asked = None if self._refused else _asked(way, rounds, moment, given)
        if asked is not None and self._graph_for(asked) is None:
            self._capture(asked, moment, given, first=True)

    def _graph_for(self, asked: _Asked) -> _CapturedProposal | None:
        return self._captured[1] if self._captured is not None and self._captured[0] == asked else None

    def _capture(self, asked: _Asked, moment: Tensor, given: Sequence[Tensor], *, first: bool) -> None:
        """Have a graph, unless that is not possible; `first` where the same was never asked for."""
        # The memory of one before is free for this one.
        self._captured = None
        try:
            if first:
                # What libraries allocate and choose at the first call must not be captured.
                asked.way(asked.rounds, moment, *(each.to(moment.device) for each in given))
            self._captured = asked, _CapturedProposal(asked, moment, given)
        except RuntimeError:
            # A library that does not let itself be captured, or too little memory: operation by operation then.
            self._refused = True


class _CapturedProposal:
    """A way for tensors of these shapes, captured on the current stream and replayed on it."""

    @torch.no_grad()
    def __init__(self, asked: _Asked, moment: Tensor, given: Sequence[Tensor]) -> None:
        self._moment = moment.detach().clone()
        self._given = [each.detach().to(moment.device, copy=True) for each in given]
        self._graph: CudaGraph[Proposal] = CudaGraph(lambda: asked.way(asked.rounds, self._moment, *self._given))

    def copies(self, moment: Tensor, given: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """What a replay for these needs before."""
        return [(self._moment, moment), *zip(self._given, given, strict=True)]

    def replayed(self, moment: Tensor) -> Proposal:
        """The proposal for a second moment that was copied."""
        return replace(self._graph.replay(), moment=moment)


def _by_steps(way: Way, rounds: int, moment: Tensor, given: Sequence[Tensor]) -> Proposal:
    return way(rounds, moment, *(each.to(moment.device, non_blocking=True) for each in given))


def _asked(way: Way, rounds: int, moment: Tensor, given: Sequence[Tensor]) -> _Asked | None:
    """What is asked for, where a graph could give it."""
    stream = _capturable_stream(moment.device)
    if stream is None or len(moment) < _LEAST or not all(each.numel() for each in given):
        return None
    shapes = tuple((each.shape, each.dtype) for each in (moment, *given))
    return _Asked(way, rounds, shapes, stream, torch.backends.cuda.matmul.fp32_precision)


def _capturable_stream(device: torch.device) -> object:
    """The current stream of a GPU, unless it is the default one, which cannot be captured; None elsewhere."""
    if not graphs_are_there(device) or torch.is_autocast_enabled("cuda") or torch.is_inference_mode_enabled():
        return None
    current = torch.cuda.current_stream(device)
    return None if current == torch.cuda.default_stream(device) else current
