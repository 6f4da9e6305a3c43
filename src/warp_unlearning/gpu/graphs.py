"""Functions that are captured as a CUDA graph and replayed.

An update of a small network is some hundred small operations, and launching them one by one keeps the host busier than
the GPU; a graph launches them all at once. A captured function depends on its arguments and on tensors that keep their
addresses: it reads no value, branches on none, and changes its state in place. Training and methods wrap their updates
by `Compute.update`; energies and attacks use `Captured` itself.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from .fast_layers import FastLayers
from .precision import Precision, autocast

Output = TypeVar("Output")
Function = Callable[..., Mapping[str, Tensor]]
Number = Tensor | float

# A stream for captures on each device, by its index.
_CAPTURE_STREAMS: dict[int, torch.cuda.Stream] = {}
# The share of the device's memory below which cached memory is returned before a capture.
_LEAST_FREE = 0.1


@dataclass(frozen=True, eq=False)
class Compute:
    """How updates are computed on one device: in which precision, and whether they are captured.

    Only a CUDA device heeds `capture`. A graph repeats the operations of the batch it was captured with, so capture
    only networks whose operations do not depend on values. Their layers are computed within `FastLayers`.
    """

    device: torch.device
    precision: Precision = "float32"
    capture: bool = False
    _pool: Pool = field(default_factory=lambda: Pool(), init=False, repr=False)

    def update(self, function: Function, *, precision: Precision | None = None) -> Captured:
        """Wrap `function`, which is then captured if `capture` is set; such graphs share memory and never overlap."""
        captures = self.capture and self.device.type == "cuda"
        layers: AbstractContextManager[object] = FastLayers() if captures else nullcontext()

        def run(*arguments: Number) -> Mapping[str, Tensor]:
            with autocast(self.device, precision or self.precision), layers:
                return function(*arguments)

        return Captured(run, self.device, enabled=captures, pool=self._pool)


class Captured:
    """`function` of tensors and numbers, which returns tensors by name; where `enabled` on a GPU, replayed as a graph.

    The first call is plain, since libraries and optimizers set themselves up. The second is captured. Later ones copy
    their arguments into the graph's own and replay it; those of other shapes are plain. Results are copies.
    """

    def __init__(
        self, function: Function, device: torch.device, *, enabled: bool = True, pool: Pool | None = None
    ) -> None:
        self._function, self._device, self._pool = function, device, pool
        self._captures = enabled and device.type == "cuda"
        self._primed = False  # Whether a plain call has been made.
        self._graph: CudaGraph[dict[str, Tensor]] | None = None
        self._inputs: list[Tensor] = []  # The graph's own arguments.

    def __call__(self, *arguments: Number) -> dict[str, Tensor]:
        """Run, capture or replay the function; returns its tensors, detached."""
        if not self._captures:
            return self._run(*arguments)
        with capturable_stream(self._device):
            if not self._primed or (self._inputs and not self._fits(arguments)):
                self._primed = True
                return self._run(*[self._tensor(a) for a in arguments])
            if self._graph is None:
                # In the layout of the arguments: the captured operations are those that suit it.
                self._inputs = [torch.empty_like(t).copy_(t) for t in map(self._tensor, arguments)]
                pool = None if self._pool is None else self._pool.handle(self._device)
                self._graph = CudaGraph(lambda: self._run(*self._inputs), pool=pool)
            for place, argument in zip(self._inputs, arguments, strict=True):
                if isinstance(argument, Tensor):
                    place.copy_(argument)
                else:
                    place.fill_(argument)
            return {name: value.clone() for name, value in self._graph.replay().items()}

    def forget(self) -> None:
        """Drop the graph and capture anew at the next call, since a tensor that the function reads has moved."""
        self._graph = None

    def _run(self, *arguments: Number) -> dict[str, Tensor]:
        return {name: value.detach() for name, value in self._function(*arguments).items()}

    def _tensor(self, argument: Number) -> Tensor:
        """The argument as a tensor on the device, as a graph must read it."""
        return argument if isinstance(argument, Tensor) else torch.full((), argument, device=self._device)

    def _fits(self, arguments: tuple[Number, ...]) -> bool:
        """Whether the arguments have the shapes of the graph's own."""
        pairs = zip(arguments, self._inputs, strict=True)
        return all(not isinstance(new, Tensor) or new.shape == old.shape for new, old in pairs)


class Pool:
    """Memory shared by graphs that are never replayed at the same time; it outlives them."""

    def __init__(self) -> None:
        self._first_graph: CudaGraph[Tensor] | None = None

    def handle(self, device: torch.device) -> Any:
        """The memory's handle, to be given to captures. A first, small graph keeps the memory from being freed."""
        if self._first_graph is None:
            self._first_graph = CudaGraph(lambda: torch.zeros(1, device=device))
        return self._first_graph.pool


class CudaGraph(Generic[Output]):
    """The operations of `make`, captured on the current stream without running; `replay` runs them.

    Graphs that share a `pool` of memory must never run at the same time; a pool lives as long as a graph that uses it.
    """

    def __init__(self, make: Callable[[], Output], *, pool: Any = None) -> None:
        """Capture `make`; an error of it ends the capture."""
        self._graph = torch.cuda.CUDAGraph()
        _make_room()
        with _no_collection():
            self._graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                self.output = make()
            except BaseException:
                # Raise the first error, not the one that it causes at the end of the capture.
                try:
                    self._graph.capture_end()
                except RuntimeError:
                    _free_generator()
                raise
            self._graph.capture_end()

    @property
    def pool(self) -> Any:
        """The memory of this graph, for others."""
        return self._graph.pool()

    def replay(self) -> Output:
        """Run the operations on the current stream; they write to the same tensors each time."""
        self._graph.replay()
        return self.output


@contextmanager
def capturable_stream(device: torch.device) -> Iterator[None]:
    """Run the block on a stream that can be captured: the current one, or a side stream in place of the default one.

    Nothing else uses the side stream, since a graph goes on using the memory that libraries allocated for it.
    """
    current = torch.cuda.current_stream(device)
    if current != torch.cuda.default_stream(device):
        yield
        return
    if current.device_index not in _CAPTURE_STREAMS:
        _CAPTURE_STREAMS[current.device_index] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side = _CAPTURE_STREAMS[current.device_index]
    side.wait_stream(current)
    try:
        with torch.cuda.stream(side):
            yield
    finally:
        current.wait_stream(side)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Within the block collect no garbage: destroying an old graph would end the capture."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _free_generator() -> None:
    """Reset the device's own generator, which a failed capture leaves in the state of one being captured."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())


def _make_room() -> None:
    """Return cached memory to the device if little is free: a capture can neither use the cache nor empty it."""
    free, total = torch.cuda.mem_get_info()
    if free < _LEAST_FREE * total:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
