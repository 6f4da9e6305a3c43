"""BatchNorm by running statistics: x̂ = (a − μ)/√(σ² + ε), ∂ℓ/∂γ = Σₜ gₜ x̂ₜ and ∂ℓ/∂β = Σₜ gₜ over positions t."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .rule import GhostRule, register


@register(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
class BatchNormRule(GhostRule):
    """Scale and shift of batch norm in eval mode, inputs (batch, channels, ...)."""

    def gradient(self, layer: nn.Module, name: str, a: Tensor, g: Tensor) -> Tensor:
        """(batch, channels)."""
        g = g.reshape(*g.shape[:2], -1)
        if name == "bias":
            return g.sum(-1)
        norm = cast(nn.BatchNorm2d, layer)
        variance = cast(Tensor, norm.running_var)
        inner = _CentredProduct.apply(a.reshape(g.shape), g, norm.running_mean)  # type: ignore[no-untyped-call]
        return cast(Tensor, inner * (variance + norm.eps).rsqrt())


class _CentredProduct(torch.autograd.Function):
    """Σₜ gₜ(aₜ − μ), shape (batch, channels), without keeping a − μ for the backward pass."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, g: Tensor, mean: Tensor) -> Tensor:
        ctx.save_for_backward(a, g, mean)
        return (a * g).sum(-1) - mean * g.sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        a, g, mean = ctx.saved_tensors
        scale = upstream[..., None]
        return g * scale, torch.addcmul(-mean[:, None] * scale, a, scale), None
