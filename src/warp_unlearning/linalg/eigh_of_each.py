"""Eigendecompositions of several matrices of different sizes, side by side on a GPU.

One of some hundred rows keeps little of a GPU busy: it is a long chain of small steps. Matrices of about one size are
decomposed together, the smaller ones made larger; groups of different sizes side by side, each on a thread and a stream
of its own. Threads wait for each other only where they run Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from threading import local
from typing import NamedTuple

import torch
from torch import Tensor

from .cusolver import can_decompose, decompose

_THREADS = 4
# Work grows with the third power of the size: at 0.8 half of it is for nothing, in the time that the largest takes.
_ALIKE = 0.8
_OWN = local()
Decomposed = tuple[Tensor, Tensor]
Batched = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


def eigh_of_each(stacks: Sequence[Tensor]) -> list[Decomposed]:
    """Eigenvalues, ascending, and eigenvectors of each stack of symmetric matrices (b, d, d)."""
    if len(stacks) < 2 or not all(stack.is_cuda for stack in stacks):
        return [eigh(stack) for stack in stacks]
    if not all(can_decompose(stack) for stack in stacks):
        return _side_by_side(stacks)
    found: dict[int, Decomposed] = {}
    groups = alike(stacks)
    pending = [
        _threads().submit(_group_beside, group, torch.cuda.current_stream(group[0].given.device)) for group in groups
    ]
    for group, future in zip(groups, pending, strict=True):
        found |= dict(zip([member.number for member in group], future.result(), strict=True))
    return [found[i] for i in range(len(stacks))]


class Member(NamedTuple):
    """One of several stacks, by its number."""

    number: int
    given: Tensor


def alike(stacks: Sequence[Tensor]) -> list[list[Member]]:
    """The stacks in groups of about one size, of one type and device, the largest first, in groups and among them."""
    groups: list[list[Member]] = []
    kinds = [(str(stack.device), str(stack.dtype)) for stack in stacks]
    for i in sorted(range(len(stacks)), key=lambda i: (kinds[i], -stacks[i].shape[1])):
        first = groups[-1][0] if groups else None
        fits = first is not None and kinds[first.number] == kinds[i]
        if first is None or not fits or stacks[i].shape[1] < _ALIKE * first.given.shape[1]:
            groups.append([])
        groups[-1].append(Member(i, stacks[i]))
    return sorted(groups, key=lambda group: -group[0].given.shape[1])


def eigh_of_group(group: Sequence[Member], *, batched: Batched = decompose) -> list[Decomposed]:
    """Those of a group as one stack. Beside a smaller matrix A stands −2‖A‖ on the diagonal: those eigenvalues come
    first, and their vectors have nothing of the others'.
    """
    size = max(member.given.shape[1] for member in group)
    try:
        values, vectors, info = batched(torch.cat([_enlarged(member.given, size) for member in group]))
        failed = bool(info.any())
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        failed = True
    if failed:
        # By other routines, which may succeed, and say what is wrong where they do not.
        return [eigh(member.given) for member in group]
    found, first = [], 0
    for member in group:
        count, d = member.given.shape[:2]
        which, of = slice(first, first + count), slice(size - d, None)
        found.append((values[which, of], vectors[which, :d, of]))
        first += count
    return found


def _enlarged(stack: Tensor, size: int) -> Tensor:
    count, d = stack.shape[:2]
    if d == size:
        return stack
    large = stack.new_zeros(count, size, size)
    large[:, :d, :d] = stack
    norms = torch.linalg.matrix_norm(stack)
    below = torch.where(norms > 0, -2 * norms, -1.0)
    large.diagonal(dim1=1, dim2=2)[:, d:] = below.unsqueeze(1)
    return large


def _group_beside(group: Sequence[Member], current: torch.cuda.Stream) -> list[Decomposed]:
    return _beside([member.given for member in group], current, lambda: eigh_of_group(group))


def _side_by_side(stacks: Sequence[Tensor]) -> list[Decomposed]:
    """One by one, by torch, on several threads."""
    _load_library(stacks[0].device)
    # The largest first, so that none is left over for the end.
    order = sorted(range(len(stacks)), key=lambda i: -len(stacks[i]) * stacks[i].shape[1] ** 3)

    def one(stack: Tensor, current: torch.cuda.Stream) -> Decomposed:
        return _beside([stack], current, lambda: [eigh(stack)])[0]

    found = {i: _threads().submit(one, stacks[i], torch.cuda.current_stream(stacks[i].device)) for i in order}
    return [found[i].result() for i in range(len(stacks))]


def _beside(
    given: Sequence[Tensor], current: torch.cuda.Stream, work: Callable[[], list[Decomposed]]
) -> list[Decomposed]:
    """On this thread's own stream, after what `current` has been given and before what it will be."""
    own = _own_stream(given[0].device)
    own.wait_stream(current)
    with torch.cuda.stream(own), torch.no_grad():
        # The allocator must not hand memory on while the other stream uses it.
        for stack in given:
            stack.record_stream(own)
        found = work()
        for result in (tensor for pair in found for tensor in pair):
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


def eigh(matrices: Tensor) -> Decomposed:
    """Eigenvalues, ascending, and eigenvectors of symmetric matrices (..., d, d), in their type."""
    try:
        values, vectors = torch.linalg.eigh(matrices)
    except RuntimeError:
        if matrices.dtype == torch.float64:
            raise
        # It does not always converge in float32.
        values, vectors = torch.linalg.eigh(matrices.double())
    return values.to(matrices.dtype), vectors.to(matrices.dtype)


@lru_cache(maxsize=16)
def _load_library(device: torch.device) -> None:
    """Torch loads what decomposes on a GPU at the first call, and several threads that make it at once would fail."""
    torch.linalg.eigh(torch.eye(2, device=device))


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    """Kept, since what libraries set up for a thread costs more than a decomposition."""
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="eigh")
