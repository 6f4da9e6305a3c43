"""Random index batches for training and unlearning, drawn from an explicit generator.

All batches of a collection have one shape, which captured CUDA graphs want: n examples at batch size b make ⌈n/b⌉
batches of ⌊n/⌈n/b⌉⌋. At most ⌈n/b⌉ − 1 examples wait for the next epoch, others each time. No batch has a single
example, on which batch norm cannot compute, unless there is only one or a batch size of one was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def batch_shape(count: int, batch_size: int) -> tuple[int, int]:
    """How many batches an epoch has, and how many examples each.

    >>> batch_shape(300, 256)
    (2, 150)
    """
    batches = -(-count // batch_size)
    if count // batches == 1 < min(count, batch_size):
        return count // 2, 2
    return batches, count // batches


def epoch(
    count: int, batch_size: int, *, generator: torch.Generator, device: torch.device | str = "cpu"
) -> Iterator[Tensor]:
    """One shuffled pass over `count` examples as index batches (int64) of one shape.

    They are drawn on the CPU, so that they are the same everywhere, and sent to `device` all at once.
    """
    batches, size = batch_shape(count, batch_size)
    order = torch.randperm(count, generator=generator)
    if torch.device(device).type == "cuda":
        # From any other memory the copy would wait for all that the GPU has been given.
        order = order.pin_memory().to(device, non_blocking=True)
    else:
        order = order.to(device)
    for i in range(batches):
        yield order[i * size : (i + 1) * size]


def endless(
    count: int, batch_size: int, *, generator: torch.Generator, device: torch.device | str = "cpu"
) -> Iterator[Tensor]:
    """Shuffled passes one after another, each newly shuffled, to run beside a longer collection."""
    while True:
        yield from epoch(count, batch_size, generator=generator, device=device)
