"""An update that is taken again and again on batches of one shape; on a GPU, replayed as one captured graph.

An update of a small network is some hundred small operations, and launching them one by one keeps the host busier than
the GPU. A graph launches them all at once, and layers are computed in forms that suit a GPU (`swift_layers.py`). What
is captured must be a function of its arguments and of tensors that stay where they are: no value is read, no branch
depends on one, and all state is changed in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..cuda_graphs import CudaGraph, capturable_stream
from ..data.examples import Taken
from ..kernels.availability import triton_is_there
from .precision import Precision, autocast
from .stepper import Number
from .swift_layers import SwiftLayers

Function = Callable[..., Mapping[str, Tensor]]
Argument = Number | Taken


@dataclass(frozen=True, eq=False)
class Repeater:
    """Makes updates that are repeated on one device, in one precision.

    With `capture`, which only a CUDA device heeds, they are replayed as graphs: for networks whose operations do not
    depend on values, since a graph repeats what the batch that was captured led to. Their layers are computed as
    `SwiftLayers` does unless `swift` is False.
    """

    device: torch.device
    precision: Precision = "float32"
    capture: bool = False
    swift: bool = True
    _shared: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def __call__(self, function: Function, *, precision: Precision | None = None) -> Repeated:
        """`function` maps tensors and numbers to named tensors without axes, and changes what it keeps in place."""
        return Repeated(function, self, precision=precision or self.precision)

    @property
    def pool(self) -> Any:
        """Memory that the graphs of this repeater share: they are replayed one after another, never side by side."""
        if "keeper" not in self._shared:
            self._shared["keeper"] = CudaGraph(lambda: torch.zeros(1, device=self.device))
        return self._shared["keeper"].pool


class Repeated:
    """A function that is called with arguments of the same shapes each time; numbers may differ. What is yet to be
    taken from a tensor is given to it taken.
    """

    def __init__(self, function: Function, by: Repeater, *, precision: Precision) -> None:
        self._function, self._by, self._precision = function, by, precision
        self._captures = by.capture and by.device.type == "cuda"
        swift = self._captures and by.swift
        self._layers: AbstractContextManager[object] = SwiftLayers(triton=triton_is_there()) if swift else nullcontext()
        self._primed = False
        self._graph: CudaGraph[Tensor] | None = None
        self._inputs: list[Tensor | Taken] = []
        self._names: list[str] = []

    def __call__(self, *arguments: Argument) -> dict[str, Tensor]:
        """What the function gives. The first call is never captured: libraries and optimizers set themselves up."""
        if not self._captures:
            return self._run(*arguments)
        with capturable_stream(self._by.device):
            if not self._primed or (self._inputs and not self._fits(arguments)):
                self._primed = True
                return self._run(*[self._placed(a) for a in arguments])
            if self._graph is None:
                self._capture(arguments)
            return self._replay(arguments)

    def forget_graph(self) -> None:
        """Capture anew at the next call: a tensor that the function reads lies elsewhere."""
        self._graph = None

    def _run(self, *arguments: Argument) -> dict[str, Tensor]:
        with autocast(self._by.device, self._precision), self._layers:
            given = [a.now() if isinstance(a, Taken) else a for a in arguments]
            return {name: value.detach() for name, value in self._function(*given).items()}

    def _placed(self, argument: Argument) -> Tensor | Taken:
        if isinstance(argument, Tensor | Taken):
            return argument
        return torch.full((), argument, device=self._by.device)

    def _fits(self, arguments: tuple[Argument, ...]) -> bool:
        return all(_fits(new, old) for new, old in zip(arguments, self._inputs, strict=True))

    def _capture(self, arguments: tuple[Argument, ...]) -> None:
        self._inputs = [_in_its_own_place(self._placed(a)) for a in arguments]

        def stacked() -> Tensor:
            found = self._run(*self._inputs)
            self._names = list(found)
            return torch.stack([value.double() for value in found.values()])

        self._graph = CudaGraph(stacked, pool=self._by.pool)

    def _replay(self, arguments: tuple[Argument, ...]) -> dict[str, Tensor]:
        assert self._graph is not None
        for place, argument in zip(self._inputs, arguments, strict=True):
            _put(argument, place)
        found = self._graph.replay().clone()
        return dict(zip(self._names, found.unbind(), strict=True))


def _fits(new: Argument, old: Tensor | Taken) -> bool:
    """Whether what was captured with one argument holds for another."""
    if isinstance(new, Taken) or isinstance(old, Taken):
        alike = isinstance(new, Taken) and isinstance(old, Taken) and new.source is old.source
        return alike and new.index.shape == old.index.shape  # type: ignore[union-attr]
    return not isinstance(new, Tensor) or new.shape == old.shape


def _in_its_own_place(given: Tensor | Taken) -> Tensor | Taken:
    if isinstance(given, Taken):
        return Taken(given.source, given.index.clone())
    # In the layout it is given in: the operations that are captured are those that suit it.
    return torch.empty_like(given).copy_(given)


def _put(argument: Argument, place: Tensor | Taken) -> None:
    if isinstance(argument, Taken):
        assert isinstance(place, Taken)
        place.index.copy_(argument.index)
    elif isinstance(place, Tensor):
        if isinstance(argument, Tensor):
            place.copy_(argument)
        else:
            place.fill_(argument)
