"""What a GPU's errors mean to the engine of a job: no room beside other work, or no more work in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..runs.jobs import NoRoom, Unfit

# Libraries that are refused memory say so in words of their own.
_REFUSED = ("out of memory", "ALLOC_FAILED", "cusolverDnCreate", "cublasCreate", "cudnnCreate")


@contextmanager
def gpu_trouble(doing: str) -> Iterator[None]:
    """Raise `NoRoom` or `Unfit` in place of what torch raises within the block, `doing` what it names.

    After any error of the device itself every later call in the process fails with the same one.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _REFUSED):
            raise NoRoom(f"the GPU has no room for {doing} beside what else runs there: {error}") from error
        if isinstance(error, torch.AcceleratorError):
            first = str(error).splitlines()[0]
            raise Unfit(f"the GPU failed during {doing}, and this process can do no more: {first}") from error
        raise
