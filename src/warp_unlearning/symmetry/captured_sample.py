"""What is sampled of every linear weight's inputs, again and again on a GPU, as one captured graph.

A forward pass of which every layer's inputs are drawn from, laid out and multiplied is some four hundred small
operations; launched one by one they keep the host busier than the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..cuda_graphs import CudaGraph, capturable_stream
from ..errors import InputError
from ..gradients.parameter_slots import copy_with_same_parameters
from .drawn_ahead import DrawnAhead
from .kept_columns import KeptColumns
from .sampled_moment import SampledMoment, moments_of


class CapturedSample:
    """`moments_of` for `model` as it stands in memory, in the mode and precision of this moment, and one batch like
    `x`.

    In-place changes of weights and buffers are seen; the caller sees to it that all else about the model, and the
    columns that are known, stay as they are. What the model does must not depend on values: a graph repeats the
    operations that the first batch led to. Places are drawn from other numbers than without a graph, which are as
    random.
    """

    def __init__(self, model: nn.Module, x: Tensor, patches: int, known: Mapping[str, KeptColumns]) -> None:
        # What is read where it lies must not be let go of: the model, and the columns.
        self._model, self._patches, self._known = model, patches, dict(known)
        self._x, self._drawn = x.detach().clone(), DrawnAhead(x.device)
        # A stream of its own, for the graph may run beside that of the energies.
        with capturable_stream(x.device, purpose="sample"):
            # What libraries allocate and choose at the first calls must not be captured.
            self._once()
            self._drawn.provide()
            self._graph: CudaGraph[dict[str, SampledMoment]] = CudaGraph(self._once)
        if not self._drawn.used_up:
            raise InputError("passes of the model over one batch ask for different places; use moments_of instead")

    def __call__(self, x: Tensor, draw: torch.Generator) -> dict[str, SampledMoment]:
        """What is seen of a batch like the first, by weight name, at places drawn from a generator on its device.

        It lies in the graph's own memory, may be written over, and holds until the next call.
        """
        with torch.no_grad():
            self._x.copy_(x)
            self._drawn.draw(draw)
        return self._graph.replay()

    def _once(self) -> dict[str, SampledMoment]:
        self._drawn.begin()
        # Copied within the graph, so that what a copy does not share is as it stands at each replay.
        working = copy_with_same_parameters(self._model)
        return moments_of(working, [self._x], self._patches, self._drawn, self._known)
