"""Torch loads what decomposes matrices on a GPU at the first call, and several threads that make it at once fail."""

from __future__ import annotations

from functools import lru_cache

import torch


@lru_cache(maxsize=16)
def load_gpu_library(device: torch.device) -> None:
    """Make the first call, before threads do."""
    torch.linalg.eigh(torch.eye(2, device=device))
