"""Eigendecompositions of several matrices of different sizes, side by side on a GPU.

One of some thousand rows keeps little of a GPU busy and waits for the host again and again. Threads wait for each other
only where they run Python; each has a stream of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from threading import local

import torch
from torch import Tensor

_THREADS = 4
_OWN = local()
Decomposed = tuple[Tensor, Tensor]


def eigh_of_each(stacks: Sequence[Tensor]) -> list[Decomposed]:
    """Eigenvalues, ascending, and eigenvectors of each stack of symmetric matrices (b, d, d)."""
    if len(stacks) < 2 or not all(stack.is_cuda for stack in stacks):
        return [_eigh(stack) for stack in stacks]
    _load_library(stacks[0].device)
    # The largest first, so that none is left over for the end.
    order = sorted(range(len(stacks)), key=lambda i: -len(stacks[i]) * stacks[i].shape[1] ** 3)
    found = {i: _threads().submit(_beside, stacks[i], torch.cuda.current_stream(stacks[i].device)) for i in order}
    return [found[i].result() for i in range(len(stacks))]


def _beside(stack: Tensor, current: torch.cuda.Stream) -> Decomposed:
    """On this thread's own stream, after what `current` has been given and before what it will be."""
    own = _own_stream(stack.device)
    own.wait_stream(current)
    with torch.cuda.stream(own), torch.no_grad():
        # The allocator must not hand memory on while the other stream uses it.
        stack.record_stream(own)
        values, vectors = _eigh(stack)
        for result in (values, vectors):
            result.record_stream(current)
        # Complete before anybody else is told of it.
        own.synchronize()
    return values, vectors


def _own_stream(device: torch.device) -> torch.cuda.Stream:
    streams = _OWN.__dict__.setdefault("streams", {})
    if device not in streams:
        streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    found: torch.cuda.Stream = streams[device]
    return found


def _eigh(stack: Tensor) -> Decomposed:
    values, vectors = torch.linalg.eigh(stack)
    return values, vectors


@lru_cache(maxsize=16)
def _load_library(device: torch.device) -> None:
    """Torch loads what decomposes on a GPU at the first call, and several threads that make it at once would fail."""
    torch.linalg.eigh(torch.eye(2, device=device))


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    """Kept, since what libraries set up for a thread costs more than a decomposition."""
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="eigh")
