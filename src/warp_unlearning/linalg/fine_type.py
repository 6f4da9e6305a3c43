"""The type that second moments and bases are computed in."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=64)
def fine_type(dtype: torch.dtype) -> torch.dtype:
    """The type itself, or float32 where it is coarser."""
    return torch.promote_types(dtype, torch.float32)


def fine(tensor: Tensor) -> Tensor:
    """The tensor in that type."""
    kind = fine_type(tensor.dtype)
    # Threads wait for each other at every call, also at one that has nothing to do.
    return tensor if tensor.dtype == kind else tensor.to(kind)


def like(tensor: Tensor, other: Tensor) -> Tensor:
    """The tensor in the type and on the device of the other."""
    return tensor if tensor.dtype == other.dtype and tensor.device == other.device else tensor.to(other)
