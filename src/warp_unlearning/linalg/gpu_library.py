"""What torch sets up on a GPU at the first call, made before threads or libraries stumble over it."""

from __future__ import annotations

from functools import lru_cache
from threading import local

import torch

_THIS = local()


@lru_cache(maxsize=16)
def load_gpu_library(device: torch.device) -> None:
    """Load what decomposes matrices, before threads do: several that make the first call at once fail."""
    torch.linalg.eigh(torch.eye(2, device=device))


def make_context_current(device: torch.device) -> None:
    """Have this thread work in the context of a GPU, by a first launch on it: to choose the device does not make it so,
    and a product that finds no context warns.
    """
    ready: set[torch.device] = _THIS.__dict__.setdefault("ready", set())
    if device not in ready:
        torch.ones(1, device=device)
        ready.add(device)
