"""GroupNorm: with x̂ the input normalised within groups of channels, ∂ℓ/∂γ = Σₜ gₜ x̂ₜ and ∂ℓ/∂β = Σₜ gₜ."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from .rule import GhostRule, register


@register(nn.GroupNorm)
class GroupNormRule(GhostRule):
    """Scale and shift of nn.GroupNorm, inputs (batch, channels, ...)."""

    def gradient(self, layer: nn.Module, name: str, a: Tensor, g: Tensor) -> Tensor:
        """(batch, channels)."""
        norm = cast(nn.GroupNorm, layer)
        if name == "weight":
            g = g * F.group_norm(a, norm.num_groups, eps=norm.eps)
        return g.reshape(*g.shape[:2], -1).sum(-1)
