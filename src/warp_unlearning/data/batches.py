"""Batches of examples in random order, fetched as they are asked for."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from . import sampling
from .examples import Batch, Examples, index_device


def shuffled(
    examples: Examples, batch_size: int, *, generator: torch.Generator, endless: bool = False
) -> Iterator[Batch]:
    """One pass over the examples in batches of one shape; with `endless`, one after another, each newly shuffled.

    Indices are sent to where the examples are once a pass, not once a batch.
    """
    draw = sampling.endless if endless else sampling.epoch
    order = draw(len(examples), batch_size, generator=generator, device=index_device(examples))
    yield from (examples.take(index) for index in order)
