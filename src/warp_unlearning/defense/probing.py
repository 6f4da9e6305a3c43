"""Examples drawn for one teleport: some to build it on, others to judge it by."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..data.examples import Examples
from ..symmetry.certificate import Labelled
from ..symmetry.symmetry import Sizes

# Enough to see the mean loss to a few hundredths of its spread, and a small part of what the bases cost.
JUDGES = 512
BATCH = 256
# Entries of inputs that a GPU is given at once where examples are small: fewer launches, and activations of some
# hundred times as much.
_ENTRIES_ELSEWHERE = 2**23


@dataclass(frozen=True, eq=False)
class View:
    """`retain` and `forget` are what a symmetry may look at; `judges` are retain examples it has not seen, or the same
    where there are too few; `validation` is held-out data where there is some.
    """

    retain: Labelled
    judges: Labelled
    forget: Labelled | None
    validation: Labelled | None

    @property
    def batches(self) -> tuple[Tensor, ...]:
        """The retain inputs in batches."""
        x = self.retain[0]
        size = BATCH if x.device.type == "cpu" else max(BATCH, _ENTRIES_ELSEWHERE * len(x) // max(1, x.numel()))
        return torch.split(x, size)


def draw_view(
    retain: Examples,
    forget: Examples | None,
    validation: Examples | None,
    sizes: Sizes,
    *,
    generator: torch.Generator,
) -> View:
    """Examples in random order: at most a fifth of the retain set judges, the others, up to the size that the symmetry
    asks for, are looked at.
    """
    order = torch.randperm(len(retain), generator=generator)
    judging = min(JUDGES, len(retain) // 5)
    judges, looked_at = order[:judging], order[judging : judging + max(sizes.retain, BATCH)]
    return View(
        _take(retain, looked_at),
        _take(retain, judges if judging else looked_at),
        None if forget is None else _take(forget, _some(forget, sizes.forget or BATCH, generator)),
        None if validation is None else _take(validation, _some(validation, JUDGES, generator)),
    )


def _some(examples: Examples, count: int, generator: torch.Generator) -> Tensor:
    return torch.randperm(len(examples), generator=generator)[:count]


def _take(examples: Examples, index: Tensor) -> Labelled:
    batch = examples.take(index)
    return batch.x, batch.y
