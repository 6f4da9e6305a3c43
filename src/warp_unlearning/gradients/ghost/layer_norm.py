"""LayerNorm: x̂ is the input normalised over its last axes."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from .affine import AffineRule
from .rule import register


@register(nn.LayerNorm)
class LayerNormRule(AffineRule):
    """Scale and shift of nn.LayerNorm, inputs (batch, ..., *normalised axes)."""

    def normalised(self, layer: nn.Module, a: Tensor) -> Tensor:
        """x̂, shape of a."""
        norm = cast(nn.LayerNorm, layer)
        return F.layer_norm(a, norm.normalized_shape, eps=norm.eps)

    def summed(self, layer: nn.Module, g: Tensor) -> Tensor:
        """Over the axes between, shape (batch, *normalised axes)."""
        return g.reshape(len(g), -1, *cast(nn.LayerNorm, layer).normalized_shape).sum(1)
