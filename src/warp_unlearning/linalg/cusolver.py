"""cuSOLVER's eigendecomposition of many matrices at once, called by hand.

`torch.linalg.eigh` uses it for matrices of at most 32 rows, and decomposes larger ones one after another with thousands
of small launches each (pytorch issues 174674 and 175585). Here the library that torch has loaded is asked directly.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_int64, c_size_t, c_void_p
from functools import lru_cache
from pathlib import Path
from threading import local
from typing import Any

import torch
from torch import Tensor

# The numbers of cuSOLVER's, cuBLAS's and CUDA's own headers.
_VECTORS, _LOWER = 1, 0
_KINDS = {torch.float32: 0, torch.float64: 1}
_OWN = local()


def can_decompose(stack: Tensor) -> bool:
    """Whether `decompose` can be used for matrices such as these."""
    return stack.is_cuda and stack.dtype in _KINDS and stack.numel() > 0 and _library() is not None


def decompose(stack: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues (b, n), ascending, and eigenvectors (b, n, n), in columns, of symmetric matrices (b, n, n), on the
    current stream; and (b) numbers that are not zero where a matrix could not be decomposed, which nobody has looked
    at.
    """
    library = _library()
    assert library is not None
    count, size = stack.shape[:2]
    # Column by column, as the library reads it, a symmetric matrix is the same; the vectors take its place.
    rows = stack.contiguous().clone()
    values = torch.empty((count, size), dtype=stack.dtype, device=stack.device)
    info = torch.empty(count, dtype=torch.int32, device=stack.device)
    kind = c_int(_KINDS[stack.dtype])
    with torch.cuda.device(stack.device):
        handle, settings = _handle(library, stack.device)
        _ask(library.cusolverDnSetStream, handle, c_void_p(torch.cuda.current_stream().cuda_stream))
        given = (
            handle, settings, c_int(_VECTORS), c_int(_LOWER), c_int64(size), kind, _at(rows), c_int64(size), kind,
            _at(values), kind,
        )  # fmt: skip
        there, here = c_size_t(), c_size_t()
        _ask(library.cusolverDnXsyevBatched_bufferSize, *given, byref(there), byref(here), c_int64(count))
        room = torch.empty(max(1, there.value), dtype=torch.uint8, device=stack.device)
        own = ctypes.create_string_buffer(max(1, here.value))
        _ask(
            library.cusolverDnXsyevBatched, *given, _at(room), there, ctypes.cast(own, c_void_p), here, _at(info),
            c_int64(count),
        )  # fmt: skip
        if here.value:
            # The library may still read what it keeps in the host's memory.
            torch.cuda.current_stream().synchronize()
    return values, rows.mT, info


def _at(tensor: Tensor) -> c_void_p:
    return c_void_p(tensor.data_ptr())


def _ask(function: Any, *given: Any) -> None:
    status = function(*given)
    if status:
        raise RuntimeError(f"cuSOLVER's {function.__name__} failed with status {status}")


def _handle(library: ctypes.CDLL, device: torch.device) -> tuple[c_void_p, c_void_p]:
    """A handle and settings for this thread and device: two threads must not share them."""
    handles: dict[torch.device, tuple[c_void_p, c_void_p]] = _OWN.__dict__.setdefault("handles", {})
    if device not in handles:
        handle, settings = c_void_p(), c_void_p()
        _ask(library.cusolverDnCreate, byref(handle))
        _ask(library.cusolverDnCreateParams, byref(settings))
        handles[device] = handle, settings
    return handles[device]


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    """The library as torch has loaded it, None where that has not happened or it is too old."""
    try:
        # Torch loads it at the first decomposition on a GPU.
        torch.linalg.eigh(torch.eye(2, device="cuda"))
        loaded = Path("/proc/self/maps").read_text().split()
        library = ctypes.CDLL(next(part for part in loaded if "libcusolver.so" in part))
        library.cusolverDnXsyevBatched  # noqa: B018
    except (AttributeError, OSError, RuntimeError, StopIteration):
        return None
    return library
