"""Functions that are captured as a CUDA graph and replayed.

An update of a small network is some hundred small operations, and launching them one by one keeps the host busier than
the GPU; a graph launches them all at once. A captured function depends on its arguments and on tensors that stay where
they are: it reads no value, branches on none, and changes its state in place.
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

_SIDE: dict[int, torch.cuda.Stream] = {}
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
        """`function`, captured where this computes so; all such graphs share memory and are replayed one by one."""
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
        self._primed = False
        self._graph: CudaGraph[dict[str, Tensor]] | None = None
        self._inputs: list[Tensor] = []

    def __call__(self, *arguments: Number) -> dict[str, Tensor]:
        """What the function returns, detached."""
        if not self._captures:
            return self._run(*arguments)
        with capturable_stream(self._device):
            if not self._primed or (self._inputs and not self._fits(arguments)):
                self._primed = True
                return self._run(*[self._tensor(a) for a in arguments])
            if self._graph is None:
                # In the layout it is given in: the captured operations are those that suit it.
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
        """Capture anew at the next call: a tensor that the function reads lies elsewhere."""
        self._graph = None

    def _run(self, *arguments: Number) -> dict[str, Tensor]:
        return {name: value.detach() for name, value in self._function(*arguments).items()}

    def _tensor(self, argument: Number) -> Tensor:
        return argument if isinstance(argument, Tensor) else torch.full((), argument, device=self._device)

    def _fits(self, arguments: tuple[Number, ...]) -> bool:
        pairs = zip(arguments, self._inputs, strict=True)
        return all(not isinstance(new, Tensor) or new.shape == old.shape for new, old in pairs)


class Pool:
    """Memory that graphs share which are never replayed at the same time. It outlives them."""

    def __init__(self) -> None:
        self._keeper: CudaGraph[Tensor] | None = None

    def handle(self, device: torch.device) -> Any:
        """The memory, which an empty graph keeps from being freed."""
        if self._keeper is None:
            self._keeper = CudaGraph(lambda: torch.zeros(1, device=device))
        return self._keeper.pool


class CudaGraph(Generic[Output]):
    """The operations of `make`, captured on the current stream without being done; `replay` does them.

    Graphs that share a `pool` of memory must never run at the same time; a pool lives as long as a graph that uses it.
    """

    def __init__(self, make: Callable[[], Output], *, pool: Any = None) -> None:
        self._graph = torch.cuda.CUDAGraph()
        _make_room()
        with _no_collection():
            self._graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                self.output = make()
            except BaseException:
                # The first error is raised, not the one that it causes here.
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
        """Do the operations on the current stream; they fill the same tensors each time."""
        self._graph.replay()
        return self.output


@contextmanager
def capturable_stream(device: torch.device) -> Iterator[None]:
    """The current stream, or one beside it where that is the default stream, which cannot be captured.

    Nothing else uses the one beside it, since a graph goes on using the memory that libraries have for its stream.
    """
    current = torch.cuda.current_stream(device)
    if current != torch.cuda.default_stream(device):
        yield
        return
    if current.device_index not in _SIDE:
        _SIDE[current.device_index] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side = _SIDE[current.device_index]
    side.wait_stream(current)
    try:
        with torch.cuda.stream(side):
            yield
    finally:
        current.wait_stream(side)


@contextmanager
def _no_collection() -> Iterator[None]:
    # Garbage may hold a graph, and destroying that ends a capture.
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _free_generator() -> None:
    """A capture that failed leaves the device's own generator as if it were still captured."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())


def _make_room() -> None:
    """Give cached memory back where little is free: a capture can neither use it nor ask for it."""
    free, whole = torch.cuda.mem_get_info()
    if free < _LEAST_FREE * whole:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
