"""Samples of one network's inputs that are asked for again and again, by a captured graph where that is possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..module_tree import buffers_by_name, parameters_by_name
from .captured_sample import CapturedSample
from .kept_columns import KeptColumns
from .sampled_moment import Asking, SampledMoment


class _Asked(NamedTuple):
    """All that decides which operations a sample takes, beside the network; columns are compared by identity."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    patches: int
    known: dict[str, KeptColumns]


class RepeatedSample:
    """A graph of `moments_of` for one network, which is captured on demand, or once the same was asked for twice in a
    row: what is asked for once is not worth it. Another network, or one that is built otherwise, takes another of
    these.
    """

    def __init__(self) -> None:
        self._last: _Asked | None = None
        self._captured: tuple[_Asked, CapturedSample] | None = None
        self._refused = False

    @property
    def captured(self) -> bool:
        """Whether there is a graph."""
        return self._captured is not None

    def replayed(
        self,
        model: nn.Module,
        parts: Sequence[Tensor],
        patches: int,
        draw: torch.Generator,
        known: Mapping[str, KeptColumns],
    ) -> dict[str, SampledMoment] | None:
        """What the graph gives for one batch, until it is asked again; None, and nothing is drawn, where the sample has
        to be taken operation by operation.
        """
        asked = self._capturable(Asking(parts, patches, known))
        if asked is None:
            return None
        (x,) = parts
        before, self._last = self._last, asked
        graph = self._graph_for(asked)
        if graph is None and asked == before:
            graph = self._capture(model, x, asked)
        return None if graph is None else graph(x, draw)

    def capture(self, model: nn.Module, asking: Asking) -> None:
        """Have a graph for what will be asked again, unless that is not possible."""
        asked = self._capturable(asking)
        if asked is not None and self._graph_for(asked) is None:
            self._capture(model, asking.parts[0], asked)

    def _capturable(self, asking: Asking) -> _Asked | None:
        """What is asked for, where a graph could give it."""
        if self._refused or len(asking.parts) != 1 or not _may_be_captured(asking.parts[0]):
            return None
        (x,) = asking.parts
        return _Asked(x.shape, x.dtype, x.device, asking.patches, dict(asking.known))

    def _graph_for(self, asked: _Asked) -> CapturedSample | None:
        return self._captured[1] if self._captured is not None and self._captured[0] == asked else None

    def _capture(self, model: nn.Module, x: Tensor, asked: _Asked) -> CapturedSample | None:
        # The memory of one before is free for this one.
        self._captured = None
        try:
            if not _lies_on(x.device, model):
                raise InputError(f"not all of the model is on {x.device}, and a graph is of one device")
            graph = CapturedSample(model, x, asked.patches, asked.known)
        except (InputError, RuntimeError):
            # Values that the host looks at, several devices, or too little memory: operation by operation then.
            self._refused = True
            return None
        self._captured = asked, graph
        return graph


def _may_be_captured(x: Tensor) -> bool:
    """Whether work on x is done on a GPU, and in no mode that a graph would keep."""
    return x.is_cuda and not torch.is_autocast_enabled("cuda") and not torch.is_inference_mode_enabled()


def _lies_on(device: torch.device, model: nn.Module) -> bool:
    """Whether all tensors of a model are there: of one that is not, a graph would keep the values of its capture."""
    tensors = [*parameters_by_name(model).values(), *buffers_by_name(model).values()]
    return all(tensor.device == device for tensor in tensors)
