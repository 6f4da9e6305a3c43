"""A running second moment into which the latest one is taken, with more weight where its subspace misses more of it.

    C ← (1 − w) C + w Ĉ,    w = max(blend, 1 − m₀ / m),

where m is the share of the energy of the latest inputs that the subspace of C misses, and m₀ the least it ever missed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .co_subspace import AnySubspace
from .subspace import energy_shares


def missed_shares(pairs: Sequence[tuple[Sequence[AnySubspace], Tensor]]) -> Tensor:
    """The share of the energy of rows (groups, n, d) that the subspace of each group misses, for all groups of all."""
    each = [pair for spans, rows in pairs for pair in zip(spans, rows, strict=True)]
    return energy_shares([span.outside(rows) for span, rows in each], [rows for _, rows in each])


def blend_weights(worst: Tensor, best: Sequence[float], blend: float) -> Tensor:
    """The weight of what was just seen for each of several layers, by the share it missed of that and its best."""
    least = torch.tensor(best, dtype=worst.dtype).to(worst.device, non_blocking=True)
    return torch.where(worst > 0, 1 - torch.minimum(worst, least) / worst, 0.0).clamp(min=blend)


def all_blended(kept: Sequence[Tensor], latest: Sequence[Tensor], weights: Tensor) -> list[Tensor]:
    """`blended` of each, with a weight for each: one call for all."""
    own = [before.to(now) for before, now in zip(kept, latest, strict=True)]
    return list(torch._foreach_lerp(own, list(latest), list(weights.unbind())))


def blended(kept: Tensor, latest: Tensor, weight: Tensor) -> Tensor:
    """The second moment that was kept with the latest taken in, in its type and on its device."""
    return torch.lerp(kept.to(latest), latest, weight.to(latest))
