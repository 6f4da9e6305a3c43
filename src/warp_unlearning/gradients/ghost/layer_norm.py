"""LayerNorm: with x̂ the input normalised over its last axes, ∂ℓ/∂γ = Σₜ gₜ x̂ₜ and ∂ℓ/∂β = Σₜ gₜ over the other axes."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from .rule import GhostRule, register


@register(nn.LayerNorm)
class LayerNormRule(GhostRule):
    """Scale and shift of nn.LayerNorm, inputs (batch, ..., *normalised axes)."""

    def gradient(self, layer: nn.Module, name: str, a: Tensor, g: Tensor) -> Tensor:
        """(batch, *normalised axes)."""
        norm = cast(nn.LayerNorm, layer)
        if name == "weight":
            g = g * F.layer_norm(a, norm.normalized_shape, eps=norm.eps)
        return g.reshape(len(g), -1, *norm.normalized_shape).sum(1)
