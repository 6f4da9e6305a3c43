"""Work on a GPU captured as a graph, to be launched as a whole, again and again.

What is captured must be a function of tensors that stay where they are: no value is read, no branch depends on one. All
of it happens on one stream, and nothing waits for the whole device: other streams go on with their work meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch

from .collection import no_collection
from .streams_beside import ahead_of

Output = TypeVar("Output")

_SIDE: dict[tuple[int, str], Any] = {}
_LEAST_FREE = 0.1


def graphs_are_there(device: torch.device) -> bool:
    """Whether work on a device can be captured."""
    return device.type == "cuda"


class CudaGraph(Generic[Output]):
    """The operations of `make`, captured on the current stream without being done; `replay` does them.

    Graphs that share a `pool` of memory must never run at the same time; a pool lives as long as a graph that uses it.
    """

    def __init__(self, make: Callable[[], Output], *, pool: Any = None) -> None:
        self._graph = torch.cuda.CUDAGraph()
        _make_room()
        with no_collection():
            self._graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                self.output = make()
            except BaseException:
                # What went wrong first is what is told.
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
        """Do the operations on the current stream; what they fill, each time the same tensors."""
        self._graph.replay()
        return self.output


def _free_generator() -> None:
    """Let the device's own generator draw again: a capture that failed leaves it as if it were still captured."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())


def _make_room() -> None:
    """Give cached memory back where little is free: a capture can neither use it nor ask for it."""
    free, whole = torch.cuda.mem_get_info()
    if free < _LEAST_FREE * whole:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


@contextmanager
def capturable_stream(device: torch.device, *, purpose: str = "") -> Iterator[None]:
    """A stream that can be captured: the current one, or one beside it where that is the default stream, which
    cannot.

    Libraries have memory of their own for every stream, which a graph captured there goes on using. So graphs that may
    run at the same time have different purposes, for each of which there is a stream.
    """
    current = torch.cuda.current_stream(device)
    if current != torch.cuda.default_stream(device):
        yield
        return
    key = current.device_index, purpose
    if key not in _SIDE:
        _SIDE[key] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with _beside(current, _SIDE[key]):
        yield


@contextmanager
def stream_ahead(device: torch.device) -> Iterator[None]:
    """A stream that can be captured and may be at work beside the current one, where that has one; else as above."""
    current = torch.cuda.current_stream(device)
    side = ahead_of(current)
    with capturable_stream(device) if side is None else _beside(current, side):
        yield


@contextmanager
def _beside(current: torch.cuda.Stream, side: torch.cuda.Stream) -> Iterator[None]:
    """After what the current stream was given, and before what it is given next."""
    side.wait_stream(current)
    try:
        with torch.cuda.stream(side):
            yield
    finally:
        current.wait_stream(side)
