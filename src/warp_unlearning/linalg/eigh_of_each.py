"""Eigendecompositions of several matrices of different sizes, side by side on a GPU.

One of some hundred rows keeps little of a GPU busy: it is a long chain of small steps. Each is given to a thread and a
stream of its own; threads wait for each other only where they run Python. Several of one size, from 512 rows on, take
longer by cuSOLVER's batched routine than one after another (on an H200, in float64).

Each step of that chain also keeps the whole GPU from other work. Where several models share one, a decomposition that a
core of the host can do in a fraction of a second is done there, if the host has cores to spare.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache
from threading import local
from typing import NamedTuple

import torch
from torch import Tensor

from ..waiting import idly, takes_turns
from .gpu_library import load_gpu_library

_THREADS = 4
_CORES_TO_SPARE = 8
_ROWS_ON_HOST = 600
# Up to so many rows torch has a routine of its own for a stack.
_SMALL = 32
_OWN = local()
Decomposed = tuple[Tensor, Tensor]


def eigh_of_each(stacks: Sequence[Tensor], *, meanwhile: Callable[[], None] | None = None) -> list[Decomposed]:
    """Eigenvalues, ascending, and eigenvectors of each stack of symmetric matrices (b, d, d). `meanwhile` is called
    where others do the work and this thread would only wait.
    """
    alone = sum(map(len, stacks)) < 2 and not takes_turns()
    if not stacks or not all(stack.is_cuda for stack in stacks) or alone:
        return [eigh(stack) for stack in stacks]
    load_gpu_library(stacks[0].device)
    parts = [(stack,) if stack.shape[1] <= _SMALL else torch.split(stack, 1) for stack in stacks]
    found: dict[int, list[Future[Decomposed]]] = {}
    # The largest first, so that none is left over for the end.
    for i in sorted(range(len(stacks)), key=lambda i: -stacks[i].shape[1]):
        current = torch.cuda.current_stream(stacks[i].device)
        # Now, and not when its turn comes: `meanwhile` may capture what the stream is given then.
        given = _Given(current, current.record_event())
        on_host = host_is_better(stacks[i].shape[1])
        pool, way = (_host_threads(), _on_host) if on_host else (_threads(), _beside)
        found[i] = [pool.submit(way, part, given) for part in parts[i]]
    try:
        if meanwhile is not None:
            meanwhile()
    finally:
        # All of them end before an error is raised: what they were given must not be used meanwhile.
        with idly():
            wait([future for own in found.values() for future in own])
    return [
        _joined([_result(future, part) for future, part in zip(found[i], parts[i], strict=True)])
        for i in range(len(stacks))
    ]


def host_is_better(rows: int) -> bool:
    """Whether a matrix of so many rows is better left to a core of the host: while others use the GPU."""
    return takes_turns() and _SMALL < rows <= _ROWS_ON_HOST and _cores() >= _CORES_TO_SPARE


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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


class _Given(NamedTuple):
    """A stream, and when it has done what it had been given by the time of the call."""

    stream: torch.cuda.Stream
    done: torch.cuda.Event


def _result(future: Future[Decomposed], stack: Tensor) -> Decomposed:
    """What a thread found, or, where it found no memory, the same once more: while something is captured, none that is
    cached is let go of.
    """
    try:
        return future.result()
    except torch.OutOfMemoryError:
        return eigh(stack)


def _beside(stack: Tensor, given: _Given) -> Decomposed:
    """On this thread's own stream, after what the one given had been given and before what it will be."""
    own = _own_stream(stack.device)
    own.wait_event(given.done)
    with torch.cuda.stream(own), torch.no_grad():
        # The allocator must not hand memory on while the other stream uses it.
        stack.record_stream(own)
        found = eigh(stack)
        for result in found:
            result.record_stream(given.stream)
        # Complete before anybody else is told of it.
        own.synchronize()
    return found


def _on_host(stack: Tensor, given: _Given) -> Decomposed:
    """The same by a core of the host."""
    own = _own_stream(stack.device)
    own.wait_event(given.done)
    with torch.cuda.stream(own), torch.no_grad():
        stack.record_stream(own)
        there = torch.empty(stack.shape, dtype=torch.float64, pin_memory=True)
        there.copy_(stack.double(), non_blocking=True)
        own.synchronize()
        values, vectors = (part.pin_memory() for part in torch.linalg.eigh(there))
        found = values.to(stack, non_blocking=True), vectors.to(stack, non_blocking=True)
        for result in found:
            result.record_stream(given.stream)
        own.synchronize()
    return found


def _own_stream(device: torch.device) -> torch.cuda.Stream:
    streams = _OWN.__dict__.setdefault("streams", {})
    if device not in streams:
        streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    found: torch.cuda.Stream = streams[device]
    return found


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    """Kept, since what libraries set up for a thread costs more than a decomposition."""
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="eigh")


@lru_cache(maxsize=1)
def _host_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="eigh on the host")
