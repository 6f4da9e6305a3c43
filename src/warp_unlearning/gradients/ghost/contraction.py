"""nᵢ = ‖Σₜ gₜ pₜᵀ‖² for rows p (n, T, d) and g (n, T, o), by the cheaper of two contractions.

The Gram form Σₜₜ' (pₜ·pₜ')(gₜ·gₜ') needs T²(d + o) multiplications, the product GᵀP needs T·d·o. Neither is kept for
the backward pass: with K = PPᵀ, Γ = GGᵀ and M = GᵀP, ∂n/∂G = 2KG = 2PMᵀ and ∂n/∂P = 2ΓP = 2GM, computed afresh.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from .applied import applied
from .once import differentiable_once


def gram_is_cheaper(positions: int, d: int, o: int) -> bool:
    """Whether T(d + o) ≤ d·o."""
    return positions * (d + o) <= d * o


def outer_norms(p: Tensor, g: Tensor) -> Tensor:
    """‖GᵢᵀPᵢ‖², shape (n,), outside the reach of autograd."""
    if gram_is_cheaper(p.shape[1], p.shape[2], g.shape[2]):
        return (torch.bmm(p, p.mT) * torch.bmm(g, g.mT)).sum((1, 2))
    return torch.bmm(g.mT, p).square().sum((1, 2))


def outer_norm_pullbacks(p: Tensor, g: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor]:
    """Σᵢ upstreamᵢ nᵢ differentiated with respect to p and g; `upstream` has shape (n,)."""
    twice = 2 * upstream[:, None, None]
    if gram_is_cheaper(p.shape[1], p.shape[2], g.shape[2]):
        return torch.bmm(torch.bmm(g, g.mT) * twice, p), torch.bmm(torch.bmm(p, p.mT) * twice, g)
    product = torch.bmm(g.mT, p) * twice
    return torch.bmm(g, product), torch.bmm(p, product.mT)


class _OuterNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, p: Tensor, g: Tensor) -> Tensor:
        ctx.save_for_backward(p, g)
        return outer_norms(p, g)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor]:
        p, g = ctx.saved_tensors
        return outer_norm_pullbacks(p, g, upstream)


def outer_norm(p: Tensor, g: Tensor) -> Tensor:
    """‖GᵢᵀPᵢ‖², shape (n,), differentiable once in p and g."""
    return cast(Tensor, applied(_OuterNorm, p, g))
