"""Refreshes of one subspace that are proposed again and again, on a GPU by a captured graph where that is possible.

A proposal is some sixty short operations. A GPU does those of several subspaces side by side, but launched one by one
they keep the host busier than the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
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

    def proposed(self, way: Way, moment: Tensor, *given: Tensor, rounds: int) -> Proposal:
        """The proposal by a way that is given the second moment and these. Its columns are the caller's; what it is
        judged by holds until the next is asked for.
        """
        asked = None if self._refused else _asked(way, rounds, moment, given)
        again, self._last = asked == self._last, asked
        if asked is not None and self._graph_for(asked) is None and again:
            self._capture(asked, moment, given, first=False)
        graph = None if asked is None else self._graph_for(asked)
        if graph is None:
            return way(rounds, moment, *(each.to(moment.device, non_blocking=True) for each in given))
        return graph(moment, given)

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

    @torch.no_grad()
    def __call__(self, moment: Tensor, given: Sequence[Tensor]) -> Proposal:
        self._moment.copy_(moment)
        for kept, new in zip(self._given, given, strict=True):
            kept.copy_(new, non_blocking=True)
        found = self._graph.replay()
        # The next refresh begins with the columns, and others keep them.
        turned = replace(found.turned, columns=found.turned.columns.clone())
        return replace(found, moment=moment, turned=turned)


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
