"""Which uses of layers have the batch as the first axis of what they read and give.

Found by a pass over one example, whose shapes differ from the batch's in that axis alone. On a GPU it takes a tenth of
the time of an energy, so what was found is kept for as long as the model lives, and holds wherever the same layers are
used in the same order on the same shapes. A model that by a switch of its own exchanges axes of one length between two
such passes would not be seen.
"""

from __future__ import annotations

from collections.abc import Hashable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .traced_pass import TracedPass
from .uses import Shapes, Use

# For every model, the places in the order of uses where the first axis is not the batch.
_FOUND: WeakKeyDictionary[nn.Module, dict[Hashable, tuple[int, ...]]] = WeakKeyDictionary()


def unclear_uses(traced: TracedPass, x: Tensor) -> list[Use]:
    """The uses of the pass over x whose first axis is not the batch."""
    found = known_unclear_uses(traced, x)
    if found is None:
        uses = traced.trace.uses
        places = _unclear(uses, _shapes_of_one(traced, x), batch=x.shape[0])
        _FOUND[traced.model][_key(uses, x)] = places
        found = [uses[index] for index in places]
    return found


def known_unclear_uses(traced: TracedPass, x: Tensor) -> list[Use] | None:
    """The same, or None where that takes a pass."""
    uses = traced.trace.uses
    places = _FOUND.setdefault(traced.model, {}).get(_key(uses, x))
    return None if places is None else [uses[index] for index in places]


def _key(uses: list[Use], x: Tensor) -> Hashable:
    return (x.shape, *[(use.path, type(use.layer), use.a.shape, use.output_shape) for use in uses])


def _shapes_of_one(traced: TracedPass, x: Tensor) -> list[Shapes]:
    of_one: list[Shapes] = []
    traced.trace.shapes = of_one
    try:
        traced.copy(x[:1].clone())
    finally:
        traced.trace.shapes = None
    return of_one


def _unclear(uses: list[Use], of_one: list[Shapes], *, batch: int) -> tuple[int, ...]:
    if [use.path for use in uses] != [path for path, _, _ in of_one]:
        return tuple(range(len(uses)))
    pairs = ((use.a.shape, use.output_shape, *shapes[1:]) for use, shapes in zip(uses, of_one, strict=True))
    return tuple(
        index
        for index, (a, output, a_of_one, output_of_one) in enumerate(pairs)
        if not (_is_batch_of(a, a_of_one, batch) and _is_batch_of(output, output_of_one, batch))
    )


def _is_batch_of(many: torch.Size, one: torch.Size, batch: int) -> bool:
    return one[:1] == (1,) and many == (batch, *one[1:])
