"""Products of float32 matrices by the fast way of a GPU, which rounds their entries to TF32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ..waiting import keeping_turn
from .gram import add_gram

ERROR = 2.0**-20
"""The largest share of the energy of a number that rounding it to TF32, which keeps 10 bits behind the first, loses."""


def rounded_gram(rows: Tensor) -> Tensor:
    """Xᵀ X of rows X (groups, n, d), float32, on and below the diagonal: on a GPU that of entries rounded to TF32.

    Both factors are rounded alike, so what comes out is the second moment of inputs that differ from X by at most
    `ERROR` of their energy, summed in float32.
    """
    total = torch.zeros(len(rows), rows.shape[2], rows.shape[2], dtype=torch.float32, device=rows.device)
    with rounded_products():
        add_gram(total, rows.float())
    return total


@contextmanager
def rounded_products() -> Iterator[None]:
    """Within the block, products of float32 matrices on CUDA devices are rounded. The switch is the process's, so a
    thread that takes turns keeps its turn.
    """
    switch = torch.backends.cuda.matmul
    before = switch.fp32_precision
    try:
        switch.fp32_precision = "tf32"
        with keeping_turn():
            yield
    finally:
        switch.fp32_precision = before
