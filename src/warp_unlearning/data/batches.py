"""Batches of examples in random order."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from . import sampling
from .examples import Examples, index_device
from .taken import Given, take_later


def shuffled(
    examples: Examples, batch_size: int, *, generator: torch.Generator, endless: bool = False
) -> Iterator[tuple[Given, Given]]:
    """One pass over the examples in batches of one shape; with `endless`, one after another, each newly shuffled.

    Indices are sent to where the examples are once a pass, not once a batch. Examples that lie in tensors are yet to be
    taken.
    """
    draw = sampling.endless if endless else sampling.epoch
    order = draw(len(examples), batch_size, generator=generator, device=index_device(examples))
    yield from (take_later(examples, index) for index in order)
