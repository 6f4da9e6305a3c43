"""GroupNorm: x̂ is the input normalised within groups of channels."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from .affine import AffineRule
from .rule import register


@register(nn.GroupNorm)
class GroupNormRule(AffineRule):
    """Scale and shift of nn.GroupNorm, inputs (batch, channels, ...)."""

    def normalised(self, layer: nn.Module, a: Tensor) -> Tensor:
        """x̂, shape of a."""
        norm = cast(nn.GroupNorm, layer)
        return F.group_norm(a, norm.num_groups, eps=norm.eps)
