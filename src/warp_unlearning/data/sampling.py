"""Seeded draws: examples of each class, batches of one shape, random crops and mirror images.

All batches of a collection have one shape, for captured CUDA graphs: n examples at batch size b make ⌈n/b⌉ batches of
⌊n/⌈n/b⌉⌋, and each epoch leaves at most ⌈n/b⌉ − 1 others out. A batch has more than one example, which batch norm
needs, unless there is only one or the batch size is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InputError
from ..randomness import Streams
from .examples import Batch, Examples, index_device


def draw_per_class(labels: NDArray[Any], *, count: int, generator: torch.Generator) -> NDArray[np.int64]:
    """Sorted positions of `count` of the `labels`, each class in proportion, rounded by largest remainder."""
    _, which, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    exact, total = count * sizes.astype(np.int64), max(len(labels), 1)
    shares = exact // total
    shares[np.argsort(-(exact % total), kind="stable")[: count - int(shares.sum())]] += 1
    members = [np.flatnonzero(which == k) for k in range(len(sizes))]
    drawn = [draw(own, count=share, generator=generator) for own, share in zip(members, shares.tolist(), strict=True)]
    return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *drawn]))


def draw(positions: NDArray[np.int64], *, count: int, generator: torch.Generator) -> NDArray[np.int64]:
    """`count` of the `positions`, sorted, whatever their class."""
    order = torch.randperm(len(positions), generator=generator).numpy()
    return np.sort(positions[order[:count]].astype(np.int64))


def fixed_test_part(labels: NDArray[Any], *, fraction: float, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Train and test positions of a share of each class, the same for every seed: of digits, and in studies."""
    count = round(fraction * len(labels))
    test = draw_per_class(labels, count=count, generator=Streams(0).generator(name, "test"))
    return np.setdiff1d(np.arange(len(labels)), test), test


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
    """One shuffled pass over `count` examples as index batches (int64) of one shape, drawn on the CPU, so that they are
    the same everywhere, and sent to `device` all at once.
    """
    batches, size = batch_shape(count, batch_size)
    order = torch.randperm(count, generator=generator)
    # From memory that is not pinned the copy would wait for all that the GPU has been given.
    pinned = order.pin_memory() if torch.device(device).type == "cuda" else order
    yield from torch.split(pinned.to(device, non_blocking=True)[: batches * size], size)


def endless(
    count: int, batch_size: int, *, generator: torch.Generator, device: torch.device | str = "cpu"
) -> Iterator[Tensor]:
    """Shuffled passes one after another, each newly shuffled, to run beside a longer collection."""
    while True:
        yield from epoch(count, batch_size, generator=generator, device=device)


def shuffled(
    examples: Examples, batch_size: int, *, generator: torch.Generator, endless: bool = False
) -> Iterator[Batch]:
    """Batches of one pass over the examples, or with `endless` of one after another."""
    while True:
        for index in epoch(len(examples), batch_size, generator=generator, device=index_device(examples)):
            yield examples.take(index)
        if not endless:
            return


def random_crop_flip(
    x: Tensor, *, padding: int, flip: bool, fill: Sequence[float], generator: torch.Generator
) -> Tensor:
    """Images (n, c, h, w), each padded with `fill` (one value, or one a channel), cropped back at a random offset and
    mirrored with probability 1/2. The generator is one of the CPU, so the draws are the same on every device.
    """
    check_fill(x, fill)
    if padding == 0 and not flip:
        return x
    drawn = draw_crop_flip(len(x), padding=padding, flip=flip, generator=generator).to(x.device)
    return crop_flip(x, drawn, torch.tensor(fill, dtype=x.dtype, device=x.device))


def check_fill(x: Tensor, fill: Sequence[float]) -> None:
    """An error where images `x` cannot be padded with `fill`."""
    if x.dim() != 4 or len(fill) not in (1, x.shape[1]):
        shape = tuple(x.shape)
        raise InputError(f"images of shape {shape} cannot be padded with {fill}; give one value or one a channel")


def draw_crop_flip(count: int, *, padding: int, flip: bool, generator: torch.Generator) -> Tensor:
    """Shifts down and right, from −padding to padding, and whether to mirror (1) or not (0), shape (count, 3)."""
    shift = torch.randint(-padding, padding + 1, (2, count, 1), generator=generator)
    mirrored = torch.rand(count, 1, generator=generator) < (0.5 if flip else 0.0)
    return torch.cat([shift[0], shift[1], mirrored.long()], dim=1)


def crop_flip(x: Tensor, drawn: Tensor, fill: Tensor) -> Tensor:
    """Images (n, c, h, w) shifted and mirrored as `drawn` says, all on one device, and no value read."""
    count, channels, height, width = x.shape
    down, right, mirrored = drawn.unsqueeze(2).unbind(1)
    rows = torch.arange(height, device=x.device) + down
    across = torch.arange(width, device=x.device)
    columns = torch.where(mirrored > 0, width - 1 - across, across) + right
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    flat = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
    index = flat.reshape(count, 1, -1).expand(-1, channels, -1)
    picked = x.reshape(count, channels, -1).gather(2, index).reshape(x.shape)
    return torch.where(inside[:, None], picked, fill[:, None, None])
