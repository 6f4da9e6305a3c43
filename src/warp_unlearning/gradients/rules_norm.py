"""Rules of layers o = γx̂ + β with x̂ normalised: ∂ℓ/∂γ = Σₜ gₜx̂ₜ and ∂ℓ/∂β = Σₜ gₜ over positions t."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .rules import GhostRule, Phase, register


class AffineRule(GhostRule):
    """Scale and shift of a layer that normalises inputs (batch, channels, ...)."""

    @abstractmethod
    def normalised(self, layer: nn.Module, a: Tensor) -> Tensor:
        """x̂, shape of a."""

    def summed(self, layer: nn.Module, g: Tensor) -> Tensor:
        """Σₜ gₜ, shape (batch, *parameter)."""
        return g.flatten(2).sum(2) if g.dim() > 2 else g

    def gradient(self, layer: nn.Module, name: str, a: Tensor, g: Tensor) -> Tensor:
        """(batch, *parameter)."""
        return self.summed(layer, g * self.normalised(layer, a) if name == "weight" else g)


@register(nn.GroupNorm)
class GroupNormRule(AffineRule):
    """Normalises within groups of channels."""

    def normalised(self, layer: nn.Module, a: Tensor) -> Tensor:
        """x̂, shape of a."""
        norm = cast(nn.GroupNorm, layer)
        return F.group_norm(a, norm.num_groups, eps=norm.eps)


@register(nn.LayerNorm)
class LayerNormRule(AffineRule):
    """Normalises over the last axes of inputs (batch, ..., *normalised axes)."""

    def normalised(self, layer: nn.Module, a: Tensor) -> Tensor:
        """x̂, shape of a."""
        norm = cast(nn.LayerNorm, layer)
        return F.layer_norm(a, norm.normalized_shape, eps=norm.eps)

    def summed(self, layer: nn.Module, g: Tensor) -> Tensor:
        """Over the axes between."""
        return g.reshape(len(g), -1, *cast(nn.LayerNorm, layer).normalized_shape).sum(1)


@register(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
class BatchNormRule(AffineRule):
    """Normalises by running statistics, x̂ = (a − μ)r with r = 1/√(σ² + ε)."""

    def output(self, layer: nn.Module, forward: Callable[[Tensor], Tensor], a: Tensor, phase: Phase) -> Tensor:
        """γra + (β − γrμ): autograd's second derivative of this costs what the first does."""
        norm = cast(nn.BatchNorm2d, layer)
        if norm.training or norm.running_mean is None or norm.weight is None:
            return forward(a)
        norm._check_input_dim(a)
        scale = norm.weight * _inverse_deviation(norm)
        shift = -norm.running_mean * scale if norm.bias is None else norm.bias - norm.running_mean * scale
        return a * _of_channels(scale, a) + _of_channels(shift, a)

    def normalised(self, layer: nn.Module, a: Tensor) -> Tensor:
        """x̂, shape of a."""
        norm = cast(nn.BatchNorm2d, layer)
        return F.batch_norm(a, norm.running_mean, norm.running_var, eps=norm.eps)

    def squared_norm(self, layer: nn.Module, names: Collection[str], a: Tensor, g: Tensor) -> Tensor:
        """By ∂ℓ/∂γ = (Σₜ gₜaₜ − μ Σₜ gₜ)r, for which x̂ need not be laid out."""
        norm = cast(nn.BatchNorm2d, layer)
        shift = self.summed(layer, g)
        found = shift.square().sum(1) if "bias" in names else 0
        if "weight" not in names:
            return cast(Tensor, found)
        scale = (self.summed(layer, a * g) - cast(Tensor, norm.running_mean) * shift) * _inverse_deviation(norm)
        return scale.square().sum(1) + found


def _inverse_deviation(norm: nn.BatchNorm2d) -> Tensor:
    return torch.rsqrt(cast(Tensor, norm.running_var) + norm.eps)


def _of_channels(values: Tensor, a: Tensor) -> Tensor:
    return values.reshape(-1, *[1] * (a.dim() - 2))
