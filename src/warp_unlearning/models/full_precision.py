"""Float32 that is float32: convolutions and matrix products on CUDA devices without rounding to TF32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..waiting import keeping_turn


@contextmanager
def full_precision() -> Iterator[None]:
    """Within the block nothing is rounded to TF32, whose 10 bits are too coarse to see whether a function was kept.

    The switches are the process's: no thread has its own.
    """
    switches = [torch.backends.cudnn.conv, torch.backends.cuda.matmul]  # type: ignore[attr-defined]
    before = [switch.fp32_precision for switch in switches]
    try:
        for switch in switches:
            switch.fp32_precision = "ieee"
        with keeping_turn():
            yield
    finally:
        for switch, precision in zip(switches, before, strict=True):
            switch.fp32_precision = precision
