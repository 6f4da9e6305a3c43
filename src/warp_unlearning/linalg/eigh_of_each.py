"""Eigendecompositions of several matrices of different sizes, side by side on a GPU.

One of some hundred rows keeps little of a GPU busy: it is a long chain of small steps. Each is given to a thread and a
stream of its own; threads wait for each other only where they run Python. Several of one size, from 512 rows on, take
longer by cuSOLVER's batched routine than one after another (on an H200, in float64).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache
from threading import local

import torch
from torch import Tensor

from ..waiting import idly

_THREADS = 4
# Up to so many rows torch has a routine of its own for a stack.
_SMALL = 32
_OWN = local()
Decomposed = tuple[Tensor, Tensor]


def eigh_of_each(stacks: Sequence[Tensor]) -> list[Decomposed]:
    """Eigenvalues, ascending, and eigenvectors of each stack of symmetric matrices (b, d, d)."""
    if not all(stack.is_cuda for stack in stacks) or sum(map(len, stacks)) < 2:
        return [eigh(stack) for stack in stacks]
    _load_library(stacks[0].device)
    parts = [(stack,) if stack.shape[1] <= _SMALL else torch.split(stack, 1) for stack in stacks]
    found: dict[int, list[Future[Decomposed]]] = {}
    # The largest first, so that none is left over for the end.
    for i in sorted(range(len(stacks)), key=lambda i: -stacks[i].shape[1]):
        current = torch.cuda.current_stream(stacks[i].device)
        found[i] = [_threads().submit(_beside, part, current) for part in parts[i]]
    with idly():
        wait([future for own in found.values() for future in own])
    return [_joined([future.result() for future in found[i]]) for i in range(len(stacks))]


def _joined(parts: Sequence[Decomposed]) -> Decomposed:
    if len(parts) == 1:
        return parts[0]
    return torch.cat([values for values, _ in parts]), torch.cat([vectors for _, vectors in parts])


def eigh(matrices: Tensor) -> Decomposed:
    """Eigenvalues, ascending, and eigenvectors of symmetric matrices (..., d, d), in their type.

    On a GPU they are computed in float64, which was no slower than float32 there, and four times as fast with 512 rows.
    """
    if matrices.is_cuda:
        return _in_float64(matrices)
    try:
        values, vectors = torch.linalg.eigh(matrices)
    except RuntimeError:
        if matrices.dtype == torch.float64:
            raise
        # It does not always converge in float32.
        return _in_float64(matrices)
    return values, vectors


def _in_float64(matrices: Tensor) -> Decomposed:
    values, vectors = torch.linalg.eigh(matrices.double())
    return values.to(matrices.dtype), vectors.to(matrices.dtype)


def _beside(stack: Tensor, current: torch.cuda.Stream) -> Decomposed:
    """On this thread's own stream, after what `current` has been given and before what it will be."""
    own = _own_stream(stack.device)
    own.wait_stream(current)
    with torch.cuda.stream(own), torch.no_grad():
        # The allocator must not hand memory on while the other stream uses it.
        stack.record_stream(own)
        found = eigh(stack)
        for result in found:
            result.record_stream(current)
        # Complete before anybody else is told of it.
        own.synchronize()
    return found


def _own_stream(device: torch.device) -> torch.cuda.Stream:
    streams = _OWN.__dict__.setdefault("streams", {})
    if device not in streams:
        streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    found: torch.cuda.Stream = streams[device]
    return found


@lru_cache(maxsize=16)
def _load_library(device: torch.device) -> None:
    """Torch loads what decomposes on a GPU at the first call, and several threads that make it at once would fail."""
    torch.linalg.eigh(torch.eye(2, device=device))


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    """Kept, since what libraries set up for a thread costs more than a decomposition."""
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="eigh")
