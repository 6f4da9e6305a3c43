"""How far predicted updates are from those that were read off two models.

Predictions have shape (n, r, *parameter) by name: r for each of n targets (n, *parameter). Every distance is 0 where
both have one direction, and does not depend on their lengths.

- cosine: 1 − ⟨p, t⟩ / (‖p‖‖t‖) over all parameters at once;
- kernels: 1 − Σ_k ⟨p_k, t_k/‖t_k‖⟩ / Σ_k ‖p_k‖ over kernels k, each the weights between two channels: factors of
  channels, whatever they are, leave it as it is;
- rows: the same over rows, all weights that lead into one channel;
- euclidean: ‖cp − t‖² / ‖t‖² with the step c fitted, 1 − cos² for c > 0 and 1 else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

Distance = Literal["cosine", "kernels", "rows", "euclidean"]
Updates = Mapping[str, Tensor]

# Below every length that matters, and its root still a number in float32.
TINY = 1e-30


def distances(predicted: Updates, targets: Updates, kind: Distance) -> Tensor:
    """The distance of every prediction from its target, shape (n, r)."""
    if kind in ("kernels", "rows"):
        pairs = [_by_parts(predicted[name], t, kind) for name, t in targets.items()]
        agreement, length = (torch.stack(parts).sum(0) for parts in zip(*pairs, strict=True))
        return 1 - agreement / length.clamp(min=TINY)
    return from_cosines(cosines(predicted, targets), kind)


def from_cosines(cosine: Tensor, kind: Distance) -> Tensor:
    """The distance that needs no more than the cosine: "cosine" or "euclidean"."""
    return 1 - cosine if kind == "cosine" else 1 - cosine.clamp(min=0).square()


def cosines(predicted: Updates, targets: Updates) -> Tensor:
    """⟨p, t⟩ / (‖p‖‖t‖) over all parameters that targets have, shape (n, r)."""
    dots = [torch.einsum("nrp,np->nr", _rows(predicted[name], 2), _rows(t, 1)) for name, t in targets.items()]
    own = [_rows(predicted[name], 2).square().sum(2) for name in targets]
    length = torch.stack(own).sum(0).clamp(min=TINY).sqrt()
    theirs = torch.stack([_rows(t, 1).square().sum(1) for t in targets.values()]).sum(0).clamp(min=TINY).sqrt()
    return torch.stack(dots).sum(0) / (length * theirs[:, None])


def unit_length(updates: Updates) -> dict[str, Tensor]:
    """Each update (n, *parameter) at length 1 over all parameters; one of length 0 stays."""
    length = torch.stack([_rows(u, 1).square().sum(1) for u in updates.values()]).sum(0).sqrt()
    factor = torch.where(length > 0, 1 / length.clamp(min=torch.finfo(length.dtype).tiny), 0.0)
    return {name: u * factor.reshape(-1, *[1] * (u.dim() - 1)) for name, u in updates.items()}


def _by_parts(p: Tensor, t: Tensor, kind: Literal["kernels", "rows"]) -> tuple[Tensor, Tensor]:
    """Σ_k ⟨p_k, t_k/‖t_k‖⟩ and Σ_k ‖p_k‖, shapes (n, r), over the parts that the target moved."""
    first = min(2 if kind == "kernels" else 1, t.dim() - 1)
    t = t.flatten(1 + first) if t.dim() > 1 + first else t[..., None]
    p = p.flatten(2 + first) if p.dim() > 2 + first else p[..., None]
    length = t.norm(dim=-1, keepdim=True)
    moved = length > 0
    direction = torch.where(moved, t / length.clamp(min=torch.finfo(t.dtype).tiny), 0.0)
    lengths = (p.square().sum(-1) + TINY).sqrt() * moved[:, None, ..., 0]
    return _rows(p * direction[:, None], 2).sum(2), _rows(lengths, 2).sum(2)


def _rows(value: Tensor, leading: int) -> Tensor:
    """All axes after the first `leading` as one, which numbers of their own have too."""
    return value.reshape(*value.shape[:leading], -1)
